"""`ExternalIdentity`: how machines outside EC2 get short-lived credentials, without a stored key.

| who | how |
|---|---|
| a host of one's own, with SSM's agent | hybrid activation: the agent keeps the role's credentials fresh, and can be told to drain |
| a host with a certificate, such as one with AMD Instinct | IAM Roles Anywhere: X.509 for credentials |
| a Google Cloud TPU VM | its service account's identity token |
| any other OpenID Connect provider | its tokens |

Checked on the template, never used with AWS or Google.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from aws_cdk import Aws, Stack
from aws_cdk import aws_iam as iam
from aws_cdk import aws_rolesanywhere as rolesanywhere
from constructs import Construct

from luma_constructs._principals import principal

__all__ = ["ExternalIdentity", "TrustAnchorSource"]

_GOOGLE = "accounts.google.com"
_ACCOUNT_ID = re.compile(r"[0-9]{10,30}", re.ASCII)
_PEM = "-----BEGIN CERTIFICATE-----"

Kind = Literal["ssm", "roles-anywhere", "google", "oidc"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrustAnchorSource:
    """Who signs the hosts' certificates; give one of both.

    Attributes:
        certificate_bundle: certificates of a certificate authority, PEM. No private key.
        private_ca_arn: of an authority in AWS Private CA.
    """

    certificate_bundle: str = ""
    private_ca_arn: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExternalIdentity:
    """How hosts outside EC2 are known; make one with a factory.

    Attributes:
        kind: which of the four.
        names: who may join: common names of certificates, or subjects of tokens.
        audience: of tokens.
        anchor: of certificates.
        provider: of tokens; None for Google, which AWS knows.
    """

    kind: Kind
    names: tuple[str, ...] = ()
    audience: str = ""
    anchor: TrustAnchorSource | None = None
    provider: iam.IOpenIdConnectProvider | None = None

    @classmethod
    def ssm_activation(cls) -> ExternalIdentity:
        """Hosts with SSM's agent, registered by `aws ssm create-activation --iam-role ROLE`."""
        return cls(kind="ssm")

    @classmethod
    def roles_anywhere(
        cls, anchor: TrustAnchorSource, *, common_names: Sequence[str]
    ) -> ExternalIdentity:
        """Hosts with a certificate.

        Args:
            anchor: who signs the certificates.
            common_names: subjects' common names that may join; `*` stands for any characters, as in
                "mi300x-*.example.com".
        """
        return cls(kind="roles-anywhere", anchor=anchor, names=tuple(common_names))

    @classmethod
    def google(cls, *, service_accounts: Sequence[str], audience: str) -> ExternalIdentity:
        """Google Cloud VMs, such as TPU VMs, by their service account.

        Args:
            service_accounts: unique numeric ids; an e-mail address can be given to another account
                after this one is deleted.
            audience: that the VM asks its metadata server a token for.
        """
        return cls(kind="google", names=tuple(service_accounts), audience=audience)

    @classmethod
    def oidc(
        cls, provider: iam.IOpenIdConnectProvider, *, audience: str, subjects: Sequence[str]
    ) -> ExternalIdentity:
        """Hosts with tokens of another OpenID Connect provider.

        Args:
            provider: the provider in IAM.
            audience: that tokens are for.
            subjects: that may join.
        """
        return cls(kind="oidc", provider=provider, names=tuple(subjects), audience=audience)

    @property
    def problems(self) -> list[tuple[str, object, str]]:
        """What is not allowed: field, value, what is allowed."""
        found: list[tuple[str, object, str]] = []
        if self.kind != "ssm" and not self.names:
            found.append(("names", self.names, "at least one; without one anybody could join"))
        if any(not name.strip("*") for name in self.names):
            found.append(("names", self.names, "names that are not only '*'"))
        if self.kind in ("google", "oidc") and not self.audience:
            found.append(("audience", self.audience, "the audience that tokens are asked for"))
        if self.kind == "google":
            wrong = [name for name in self.names if not _ACCOUNT_ID.fullmatch(name)]
            if wrong:
                found.append(("service_accounts", wrong, "unique numeric ids, not addresses"))
        if self.anchor is not None:
            bundle, authority = self.anchor.certificate_bundle, self.anchor.private_ca_arn
            if bool(bundle) == bool(authority):
                found.append(("anchor", self.anchor, "certificate_bundle or private_ca_arn"))
            elif bundle and (_PEM not in bundle or "PRIVATE KEY" in bundle):
                found.append(("anchor.certificate_bundle", "...", "certificates in PEM, no key"))
        return found

    def trust_anchor(self, scope: Construct) -> rolesanywhere.CfnTrustAnchor | None:
        """Make the trust anchor, where hosts have certificates."""
        if self.anchor is None:
            return None
        anchor = rolesanywhere.CfnTrustAnchor
        bundle = self.anchor.certificate_bundle
        return anchor(
            scope,
            "TrustAnchor",
            # A name is required; the path is unique in the account's region.
            name=scope.node.path.replace("/", "-")[:255],
            enabled=True,
            source=anchor.SourceProperty(
                source_type="CERTIFICATE_BUNDLE" if bundle else "AWS_ACM_PCA",
                source_data=anchor.SourceDataProperty(
                    x509_certificate_data=bundle or None,
                    acm_pca_arn=self.anchor.private_ca_arn or None,
                ),
            ),
        )

    def allow_source_identity(
        self, role: iam.IRole, anchor: rolesanywhere.CfnTrustAnchor | None
    ) -> None:
        """Let Roles Anywhere state the certificate's name as the session's source identity.

        A new role's trust must allow it beside taking the role (IAM Roles Anywhere User Guide, "Trust
        policy"), and CDK's principals have no word for it.
        """
        if anchor is None or not isinstance(role, iam.Role) or role.assume_role_policy is None:
            return
        role.assume_role_policy.add_statements(
            iam.PolicyStatement(
                actions=["sts:SetSourceIdentity"],
                principals=[principal(_with_certificate(anchor, self.names))],
            )
        )

    def trusted(
        self, scope: Construct, anchor: rolesanywhere.CfnTrustAnchor | None
    ) -> iam.PrincipalBase:
        """Give who may take the nodes' role."""
        if anchor is not None:
            return _with_certificate(anchor, self.names)
        if self.kind == "ssm":
            return _managed_by_ssm(scope)
        if self.provider is None:
            return iam.WebIdentityPrincipal(_GOOGLE, _google_claims(self.names, self.audience))
        issuer = self.provider.open_id_connect_provider_issuer
        claims = {f"{issuer}:aud": self.audience, f"{issuer}:sub": list(self.names)}
        return iam.OpenIdConnectPrincipal(self.provider, {"StringEquals": claims})


def _google_claims(accounts: Sequence[str], audience: str) -> dict[str, dict[str, object]]:
    """Give the conditions on a token of Google's.

    AWS compares `aud` with the token's `azp`, the service account, and `oaud` with its audience (IAM
    User Guide, "Available keys for AWS web identity federation").
    """
    return {
        "StringEquals": {
            f"{_GOOGLE}:aud": list(accounts),
            f"{_GOOGLE}:oaud": audience,
            f"{_GOOGLE}:sub": list(accounts),
        }
    }


def _managed_by_ssm(scope: Construct) -> iam.PrincipalBase:
    """Give SSM, on behalf of this account's managed nodes alone."""
    nodes = Stack.of(scope).format_arn(service="ssm", resource="*")
    return iam.PrincipalWithConditions(
        principal(iam.ServicePrincipal("ssm.amazonaws.com")),
        {
            "StringEquals": {"aws:SourceAccount": Aws.ACCOUNT_ID},
            "ArnLike": {"aws:SourceArn": nodes},
        },
    )


def _with_certificate(
    anchor: rolesanywhere.CfnTrustAnchor, names: Sequence[str]
) -> iam.PrincipalBase:
    """Give hosts whose certificate this anchor vouches for, by its subject's common name."""
    service = iam.ServicePrincipal("rolesanywhere.amazonaws.com")
    conditions = {
        "ArnEquals": {"aws:SourceArn": anchor.attr_trust_anchor_arn},
        "StringLike": {"aws:PrincipalTag/x509Subject/CN": list(names)},
    }
    return iam.SessionTagsPrincipal(
        principal(iam.PrincipalWithConditions(principal(service), conditions))
    )
