"""List the tasks, of which data.labels chooses one."""

from imagenet_ddp.models.several_labels import SeveralLabels
from imagenet_ddp.models.task import OneLabel

TASKS = {each.labels: each for each in (OneLabel, SeveralLabels)}
