"""Real federations, on Flower: device folders, a server, and the network between them."""
