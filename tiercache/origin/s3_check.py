"""The check before anything is mounted: one line for a person that says what to change."""

from __future__ import annotations

import logging

from tiercache.config import OriginConfig
from tiercache.errors import OriginConfigError, OriginUnavailableError
from tiercache.origin.http_errors import ConnectError
from tiercache.origin.s3_client import Request, S3Client
from tiercache.origin.s3_endpoint import region_of
from tiercache.origin.s3_list import Cursor, ListRequest
from tiercache.origin.s3_location import Location
from tiercache.origin.s3_reply import EXPIRED_CODES, SKEWED_CODES, Refusal, error_of

log = logging.getLogger(__name__)


async def check_bucket(client: S3Client, location: Location, config: OriginConfig) -> None:
    """Raise `OriginConfigError` with one clear line unless the bucket can be listed or read.

    What only time can mend (5xx, stalls) stays `OriginUnavailableError`.
    """
    probe = ListRequest(location.root, Cursor(), delimiter=True, limit=1)
    try:
        answer = await _refusal(client, Request("GET", query=probe.query(v1=False)))
        if answer is None:
            return
        if answer.status in (400, 405, 501) and not answer.code.startswith("Auth"):
            answer = await _refusal(client, Request("GET", query=probe.query(v1=True))) and answer
        elif answer.status == 403 and not _names_cause(answer):
            answer = await _refusal(client, Request("HEAD")) and answer
            if answer is None:
                log.warning("%s cannot be listed, only read by name", location.url)
    except ConnectError as error:
        raise OriginConfigError(f"{location.url}: {error}; check --endpoint-url") from error
    except OriginUnavailableError as error:
        raise _named(error, location) from error
    if answer is not None:
        asked = client.endpoint.region if client.endpoint else ""
        raise explain(answer, asked, location, config)


async def _refusal(client: S3Client, request: Request) -> Refusal | None:
    answer = await client.ask(request)
    if isinstance(answer, Refusal):
        return answer
    with answer:
        return None


def _names_cause(refusal: Refusal) -> bool:
    return explain_code(refusal.code) is not None


def explain_code(code: str) -> str | None:
    """What an error code means to the person who mounts; None for those that say too little."""
    if code in EXPIRED_CODES:
        return "the credentials have expired: sign in again"
    if code in SKEWED_CODES:
        return "the clock of this machine is wrong: correct it"
    return {
        "NoSuchBucket": "the bucket does not exist: check its name, --endpoint-url and --profile",
        "InvalidAccessKeyId": "the store does not know the access key: check the credentials",
        "SignatureDoesNotMatch": "the secret key does not fit the access key: check them",
        "AllAccessDisabled": "all access to the bucket is disabled",
        "InvalidBucketName": "the bucket name is not valid",
    }.get(code)


def explain(
    refusal: Refusal, region: str, location: Location, config: OriginConfig
) -> OriginConfigError | OriginUnavailableError:
    """The error that tells a person why a bucket asked for in *region* cannot be mounted."""
    error = error_of(refusal)
    text = explain_code(refusal.code)
    if text is None and 300 <= refusal.status < 400:
        text = _elsewhere(refusal, region)
    if text is None and isinstance(error, OriginUnavailableError):
        return _named(error, location)
    if text is None and refusal.status == 404:
        text = explain_code("NoSuchBucket")
    if text is None and refusal.status in (401, 403):
        text = _denied(config)
    if text is None:
        text = _elsewhere(refusal, region) or f"{error}: is this an S3 endpoint?"
    return OriginConfigError(f"{location.url}: {text}")


def _named(error: OriginUnavailableError, location: Location) -> OriginUnavailableError:
    return type(error)(f"{location.url}: {error}", error.retry_after_s)


def _denied(config: OriginConfig) -> str:
    if config.anonymous:
        return "access denied: the bucket is not public, mount without --anonymous"
    hint = "" if config.requester_pays else ", or requester_pays if the bucket asks for it"
    return f"access denied: these credentials need s3:ListBucket and s3:GetObject{hint}"


def _elsewhere(refusal: Refusal, asked: str) -> str | None:
    """For a bucket that lives where we would not follow."""
    right = region_of(refusal.region, refusal.headers.get("location", ""))
    if right and right != asked:
        return f"the bucket is in region {right}, not {asked}: set --region {right}"
    if 300 <= refusal.status < 400:
        return f"the store redirects ({refusal.status}): check --endpoint-url and --region"
    return None
