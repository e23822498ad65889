"""federec: recommenders trained where the data lives, on each user's own device.

    import federec as fr

    data = fr.load("tastes")
    run = fr.train(fr.PFedRec(dim=32), data, rounds=100, seed=0)
    run.test["sampled"]["hr@10"]
    run.recommend(user=42, k=10)

Methods of your own derive from `fr.DeviceMethod`, plug-ins from `fr.Plugin`: `federec new method mine` writes a file
to start from. The command line is `federec --help`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from federec.auditing.audit import audit as audit
    from federec.auditing.findings import Audit as Audit
    from federec.cohort.cohort import Cohort as Cohort
    from federec.cohort.cohort import Step as Step
    from federec.cohort.layers import Param as Param
    from federec.cohort.layers import dot as dot
    from federec.cohort.layers import item_rows as item_rows
    from federec.cohort.layers import mlp as mlp
    from federec.cohort.layers import mlp_params as mlp_params
    from federec.data.interactions import Interactions as Interactions
    from federec.data.sets import load as load
    from federec.errors import UserError as UserError
    from federec.methods.base import DeviceMethod as DeviceMethod
    from federec.methods.central import CentralMethod as CentralMethod
    from federec.methods.ease import EASE as EASE
    from federec.methods.fcf import FCF as FCF
    from federec.methods.fedals import FedALS as FedALS
    from federec.methods.fedease import FedEASE as FedEASE
    from federec.methods.fedmf import FedMF as FedMF
    from federec.methods.fedncf import FedNCF as FedNCF
    from federec.methods.fednext import FedNext as FedNext
    from federec.methods.fednext_projected import FedNextProjected as FedNextProjected
    from federec.methods.fedpergnn import FedPerGNN as FedPerGNN
    from federec.methods.fedrap import FedRAP as FedRAP
    from federec.methods.fedrecgel import FedRecGEL as FedRecGEL
    from federec.methods.fedrecon import FedRecon as FedRecon
    from federec.methods.fedsasrec import FedSASRec as FedSASRec
    from federec.methods.ials import IALS as IALS
    from federec.methods.lightgcn import LightGCN as LightGCN
    from federec.methods.local_only import LocalOnly as LocalOnly
    from federec.methods.metamf import MetaMF as MetaMF
    from federec.methods.mf import MF as MF
    from federec.methods.ncf import NCF as NCF
    from federec.methods.negative_count import NegativeCount as NegativeCount
    from federec.methods.pfedrec import PFedRec as PFedRec
    from federec.methods.popularity import Popularity as Popularity
    from federec.methods.sasrec import SASRec as SASRec
    from federec.plugins.base import Plugin as Plugin
    from federec.plugins.dualper import DualPer as DualPer
    from federec.plugins.ldp import LDP as LDP
    from federec.plugins.plgc import PLGC as PLGC
    from federec.plugins.recency import Recency as Recency
    from federec.plugins.sam import SAM as SAM
    from federec.reproduction.compare import Comparison as Comparison
    from federec.reproduction.compare import compare as compare
    from federec.reproduction.reproduce import Reproduced as Reproduced
    from federec.reproduction.reproduce import reproduce as reproduce
    from federec.reproduction.tune import Tuned as Tuned
    from federec.reproduction.tune import tune as tune
    from federec.runs.recommendation import Recommendation as Recommendation
    from federec.runtimes.local import resume as resume
    from federec.runtimes.local import train as train
    from federec.runtimes.run import Run as Run
    from federec.stages.central_noise import CentralNoise as CentralNoise
    from federec.stages.clip import Clip as Clip
    from federec.stages.dense import Dense as Dense
    from federec.stages.distributed_noise import DistributedNoise as DistributedNoise
    from federec.stages.gaussian import Gaussian as Gaussian
    from federec.stages.laplace import Laplace as Laplace
    from federec.stages.quantise import Quantise as Quantise
    from federec.stages.secure_sum import SecureSum as SecureSum
    from federec.stages.top_rows import TopRows as TopRows
    from federec.tracking.mlflow import MLflow as MLflow
    from federec.tracking.tensorboard import TensorBoard as TensorBoard

__version__ = "0.2.0"

# Where each name lives. Loaded when first asked for, so that `import federec` does not wait for torch.
_HOMES = {
    "Audit": "auditing.findings",
    "CentralMethod": "methods.central",
    "CentralNoise": "stages.central_noise",
    "Clip": "stages.clip",
    "Cohort": "cohort.cohort",
    "Comparison": "reproduction.compare",
    "Dense": "stages.dense",
    "DeviceMethod": "methods.base",
    "DistributedNoise": "stages.distributed_noise",
    "DualPer": "plugins.dualper",
    "EASE": "methods.ease",
    "FCF": "methods.fcf",
    "FedALS": "methods.fedals",
    "FedEASE": "methods.fedease",
    "FedMF": "methods.fedmf",
    "FedNCF": "methods.fedncf",
    "FedNext": "methods.fednext",
    "FedNextProjected": "methods.fednext_projected",
    "FedPerGNN": "methods.fedpergnn",
    "FedRAP": "methods.fedrap",
    "FedRecGEL": "methods.fedrecgel",
    "FedRecon": "methods.fedrecon",
    "FedSASRec": "methods.fedsasrec",
    "Gaussian": "stages.gaussian",
    "IALS": "methods.ials",
    "Interactions": "data.interactions",
    "LDP": "plugins.ldp",
    "Laplace": "stages.laplace",
    "LightGCN": "methods.lightgcn",
    "LocalOnly": "methods.local_only",
    "MF": "methods.mf",
    "MLflow": "tracking.mlflow",
    "MetaMF": "methods.metamf",
    "NCF": "methods.ncf",
    "NegativeCount": "methods.negative_count",
    "PFedRec": "methods.pfedrec",
    "PLGC": "plugins.plgc",
    "Param": "cohort.layers",
    "Plugin": "plugins.base",
    "Popularity": "methods.popularity",
    "Quantise": "stages.quantise",
    "Recency": "plugins.recency",
    "Recommendation": "runs.recommendation",
    "Reproduced": "reproduction.reproduce",
    "Run": "runtimes.run",
    "SAM": "plugins.sam",
    "SASRec": "methods.sasrec",
    "SecureSum": "stages.secure_sum",
    "Step": "cohort.cohort",
    "TensorBoard": "tracking.tensorboard",
    "TopRows": "stages.top_rows",
    "Tuned": "reproduction.tune",
    "UserError": "errors",
    "audit": "auditing.audit",
    "compare": "reproduction.compare",
    "dot": "cohort.layers",
    "item_rows": "cohort.layers",
    "load": "data.sets",
    "mlp": "cohort.layers",
    "mlp_params": "cohort.layers",
    "reproduce": "reproduction.reproduce",
    "resume": "runtimes.local",
    "train": "runtimes.local",
    "tune": "reproduction.tune",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'federec' has no attribute '{name}'")
    try:
        return getattr(import_module(f"federec.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        from federec.errors import lacking

        raise lacking(error) from None


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
