"""Reads a page as a browser would, strictly."""

from html.parser import HTMLParser


class Reader(HTMLParser):
    """Collects text and tags, and fails on tags that do not close in order."""

    def __init__(self, html):
        super().__init__()
        self.open, self.tags, self.words, self.rows = [], [], [], []
        self.feed(html)
        assert self.open == []

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())

    def attributes(self, tag):
        return [attrs for name, attrs in self.tags if name == tag]

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not {"style", "script"} & set(self.open):
            self.words.append(data)
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data
