from .attack import Attack as Attack
from .attack import Scene as Scene
from .attacks import ALittleIsEnough as ALittleIsEnough
from .attacks import BitFlip as BitFlip
from .attacks import GaussianNoise as GaussianNoise
from .attacks import InnerProduct as InnerProduct
from .attacks import LabelFlip as LabelFlip
from .attacks import MinMax as MinMax
from .attacks import MinSum as MinSum
from .attacks import NoAttack as NoAttack
from .attacks import NonFinite as NonFinite
from .mimic import Mimic as Mimic
from .notation import members as members
from .notation import parse_attack as parse_attack
from .tuned import Tuned as Tuned

__all__: list[str]
