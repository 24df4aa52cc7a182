"""CDK building blocks of Luma, usable alone in other CDK apps.

So far `luma_constructs.key_policy`, which needs neither `aws_cdk` nor Node: it turns an enclave
image's measurements into the statements of a customer's KMS key.
"""
