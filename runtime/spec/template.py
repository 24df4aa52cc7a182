"""The commented job file that `luma init` writes: every field, with its default or an example."""

from __future__ import annotations

from typing import Final

_TEMPLATE: Final = """\
# A Luma job. `luma check FILE` judges it, `luma launch FILE` runs it.
# Relative paths start at this file's folder. docs/reference/job.md describes every field.
schema: luma/v1
name: my-job                      # letters, digits, dots, dashes and underscores

model:
  source: ./model                 # an HF folder, hf://name@revision, or module.py:function
  # revision: main                # for hf:// only: branch, tag or commit
  dtype: fp32                     # computed in; bf16 is trained from fp32 master weights

adapter: null                     # all parameters are trained; or a LoRA adapter:
# adapter:
#   kind: lora
#   r: 16                         # rank
#   alpha: 32                     # the update is multiplied by alpha / r
#   dropout: 0.0
#   target_modules: null          # null: peft's choice for the model's family

compile:
  seal: L1                        # L0 signed, L1 also encrypted with your key
  targets: [cpu]                  # a payload each, such as [cpu, cuda-sm90]
  # key_file: ./data.key          # the 32-byte key for L1; by default the one in Luma's home
  # kms:                          # or a key in AWS KMS; nothing is asked of AWS without it
  #   key_arn: arn:aws:kms:eu-west-1:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab
  #   customer: acme              # stands in the artifact, for anyone to read

train:
  steps: 100                      # exactly one of steps, tokens (such as 2B) and epochs
  # tokens: 2B
  # epochs: 1
  micro_shards: 8                 # the pieces of a global batch that islands take
  micro_batch: 1                  # samples of a piece; the global batch is their product
  seq_len: 256                    # positions of a sample
  seed: 0
  optimizer:
    name: adamw
    lr: 1e-4
    betas: [0.9, 0.95]
    eps: 1e-8
    weight_decay: 0.1
    grad_clip: 1.0                # null for no clipping
  schedule:
    kind: cosine                  # or constant
    warmup_steps: 10
    min_lr_ratio: 0.1             # last learning rate as a part of the peak
  precision: fp32                 # of master weights, moments and sums
  checkpointing: none             # or layer: less memory, a layer's forward is computed twice
  checkpoint:
    every: auto                   # or a number of steps
    keep: 2
  headroom: 5                     # a gradient may grow by 2^5 in a step before it is redone

data:
  source: ./data                  # file, folder, hf:// data set, or a list of them
  kind: text                      # or chat: messages, with the loss on the assistant's tokens
  format: auto                    # auto goes by the suffix; or text, jsonl, parquet
  text_field: text                # field of JSONL, column of Parquet
  packing: false                  # several documents in a sample, attention kept inside each
  # max_samples: 1000

resources:
  accelerators: [cpu:1]           # NAME:COUNT of an island, such as [H100:8, trn2:1, 24GB..:1]
  infra: local                    # this machine; or AWS: aws/us-east-1, aws/us-*, a list of them
  # spot: auto                    # in AWS: auto takes spot where it is cheaper; or only, never
  # min_on_demand: 0              # in AWS: islands that start on demand, whatever spot costs
  # deadline: 8h                  # in AWS: from the launch to the end
  islands: 2                      # islands that the job starts with
  min_workers: 1                  # with fewer the job waits
  max_workers: 4
  threads_per_island: 1
  max_price: null                 # such as 12/h, US dollars
  max_cost: null                  # US dollars for the whole job; it stops resumably before that

recovery:
  heartbeat_timeout: 5s           # silence after which an island is out
  max_restarts: 3                 # on this machine
  restart_on: [interruption, no-capacity, error]

service:
  model_name: null                # name in the API; null takes the job's
  port: null                      # null for a free one

envs: {}                          # environment variables of the islands
secrets: []                       # names of variables that are passed on and never stored
"""


def commented_job_yaml(name: str = "my-job") -> str:
    """Give the text of a job file that is valid as it stands and explains every field.

    Args:
        name: the job's name, as `JobSpec` allows it.
    """
    comment = "# letters, digits, dots, dashes and underscores"
    line = f"name: {name}"
    return _TEMPLATE.replace(f"name: my-job{'': <22}{comment}", f"{line: <34}{comment}")
