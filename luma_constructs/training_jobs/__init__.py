"""Jobs as state machines."""

from luma_constructs.training_jobs.construct import TrainingJobs
from luma_constructs.training_jobs.grants import TrainingJobsGrants

__all__ = ["TrainingJobs", "TrainingJobsGrants"]
