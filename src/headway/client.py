"""`wrap`: a client of the same class whose calls go through Headway.

The seam is the http transport. The wrapped client is the SDK's own copy of the given one, standing
on a shallow clone of the user's http client in which only the transport is ours; and our transport
sends through the original. So proxies, TLS, mounts, hooks, cookies, auth and mock transports stay
underneath, untouched, and the original client goes on working as it was.

With `errors` the only module that imports openai.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from types import MethodType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, TypeVar, cast

import openai
from openai._models import FinalRequestOptions

from headway.errors import PolicyError, WrapError
from headway.forks import free_in_children
from headway.hosts import split_url
from headway.transport.async_ import AsyncTransport
from headway.transport.family import family_of
from headway.transport.flight import NOTE
from headway.transport.home import Home
from headway.transport.signer import Signer
from headway.transport.sync import Transport

if TYPE_CHECKING:
    from types import ModuleType

    import httpx2
    from typing_extensions import Unpack

    from headway.core.model import Rng, Sink
    from headway.credentials import Credential
    from headway.policy.signing import PublicKeys
    from headway.policy.sources import PolicyArgument
    from headway.router import Router

OneT = TypeVar("OneT", bound="openai.OpenAI | openai.AsyncOpenAI")
ClientT = TypeVar("ClientT", bound="openai.OpenAI | openai.AsyncOpenAI | ModuleType")
EndpointClients: TypeAlias = (
    "openai.OpenAI | openai.AsyncOpenAI | Sequence[openai.OpenAI | openai.AsyncOpenAI]"
)
"""A client that is an endpoint, or one for sync and one for async code."""

POLICY_VARIABLE = "HEADWAY_POLICY"
KEYS_VARIABLE = "HEADWAY_POLICY_KEYS"
UNSIGNED_VARIABLE = "HEADWAY_POLICY_UNSIGNED"
SDK_DEFAULT = "AsyncHttpxClientWrapper"
"""The class of the http client that the SDK makes where the user gives none."""
CLASSES_MAX = 64
"""Classes of clients for which what is set on instances is kept; the SDK has six."""
SHARED_ROUTERS_MAX = 256
"""Policies remembered for sharing; a process with more distinct ones gets a router per client."""


class RouterOptions(TypedDict, total=False):
    """The keyword arguments of `Router` that `wrap` hands on."""

    mode: str
    zone: str | None
    credentials: Mapping[str, Credential]
    clients: Mapping[str, EndpointClients] | None
    allowed_hosts: Sequence[str] | None
    public_keys: PublicKeys | Mapping[str, str | bytes] | None
    allow_unsigned: bool
    policy_id: str | None
    instance: str | None
    cache_dir: str | os.PathLike[str] | None
    shared_state: Any  # an object of headway.shared_state, an optional extra
    response_cache: MutableMapping[str, bytes] | str | None
    on_event: Sink | None
    clock: Callable[[], float] | None
    rng: Rng | None


def wrap(  # long: the checks of one public call
    client: ClientT,
    policy: PolicyArgument | Router | None = None,
    *,
    router: Router | None = None,
    transport: Literal["aiohttp"] | None = None,
    **router_options: Unpack[RouterOptions],
) -> ClientT:
    """Return a client of the same class that routes, bounds its retries and accounts for tasks.

    `policy` is a URL, a path, a `Policy`, or a `Router`. None reads the environment variable
    HEADWAY_POLICY; where that is unset, the client's own endpoint becomes the whole policy. Clients
    wrapped with the same policy and options share one router. The given client is left as it is.
    For the module-level client, pass the `openai` module itself. `transport="aiohttp"` sends an
    async client's requests through aiohttp, which costs less CPU under concurrency; it needs
    `openai[aiohttp]`, and a client whose http client is the SDK's own default.

    Raises `WrapError` (a `TypeError`) for what can't be wrapped, is wrapped already or is closed;
    `PolicyError` for a policy that can't be used; `TypeError` for an unknown keyword argument.
    """
    if client is openai:
        module: Any = openai
        module._client = wrap(
            module._load_client(), policy, router=router, transport=transport, **router_options
        )
        return client
    if not isinstance(client, openai.OpenAI | openai.AsyncOpenAI):
        raise WrapError(
            f"headway.wrap() takes an OpenAI or AsyncOpenAI client, not {type(client).__name__}. "
            "Clients of other SDKs that speak the OpenAI API can be replaced by one with base_url=."
        )
    _check_names(router_options)
    if router is not None and (policy is not None or router_options):
        given = ", ".join((["policy"] if policy is not None else []) + list(router_options))
        raise WrapError(f"the router is given: {given} can only be set where it is made.")
    base: openai.OpenAI | openai.AsyncOpenAI = client
    if transport is not None:
        base = _over_aiohttp(client, transport)
    http: Any = base._client
    if _is_wrapped(http):
        raise WrapError(
            "this client is wrapped already. Wrap the original client, or use what wrap() returned."
        )
    if http.is_closed:
        raise WrapError("this client is closed, and the wrapped one would share its connections.")
    family = family_of(http)
    if family is None:
        raise WrapError(f"{type(http).__name__} is neither an httpx2 nor an httpx client.")
    chosen = router if router is not None else _router_for(base, policy, router_options)
    home = Home(
        family,
        base_url=str(base.base_url),
        azure=isinstance(base, openai.AzureOpenAI | openai.AsyncAzureOpenAI),
        attempts_max=base.max_retries + 1,
        follows_redirects=bool(http.follow_redirects),
        is_async=isinstance(base, openai.AsyncOpenAI),
        signer=Signer(base, "the wrapped one") if _signs(base) else None,
        new_options=FinalRequestOptions.construct,
    )
    seam = (
        Transport(chosen, cast("httpx2.Client", http), home)
        if isinstance(base, openai.OpenAI)
        else AsyncTransport(chosen, cast("httpx2.AsyncClient", http), home)
    )
    return cast("ClientT", _noting(_copy_of(base, _clone(http, seam))))


_KEYWORDS = ("policy", "router", "transport", *RouterOptions.__annotations__)


def _check_names(options: Mapping[str, object]) -> None:
    """Raise `TypeError` for a name that `wrap` doesn't have, with the one that was meant."""
    for name in options:
        if name not in _KEYWORDS:
            from difflib import get_close_matches

            meant = get_close_matches(name, _KEYWORDS, n=1)
            hint = f"did you mean {meant[0]!r}?" if meant else f"it takes {', '.join(_KEYWORDS)}."
            raise TypeError(f"headway.wrap() got an unexpected keyword argument {name!r}: {hint}")


def _signs(client: openai.OpenAI | openai.AsyncOpenAI) -> bool:
    """Whether it signs requests before they are sent (Bedrock, Vertex): no key would do."""
    return getattr(client, "_provider_runtime", None) is not None


# --------------------------------------------------------------------------- copies


def _over_aiohttp(client: object, transport: str) -> openai.AsyncOpenAI:
    """The same client with the SDK's aiohttp transport in place of its default one."""
    if transport != "aiohttp":
        raise WrapError(f'transport= knows only "aiohttp", not {transport!r}.')
    if not isinstance(client, openai.AsyncOpenAI):
        raise WrapError('transport="aiohttp" is for async clients: aiohttp has no other side.')
    if type(client._client).__name__ != SDK_DEFAULT:
        raise WrapError(
            'transport="aiohttp" would replace the http client you made. Give the openai client '
            "http_client=openai.DefaultAioHttpClient(...) yourself, and leave transport= out."
        )
    try:
        http = openai.DefaultAioHttpClient(timeout=client.timeout, base_url=client.base_url)
    except (ImportError, RuntimeError) as exc:
        raise WrapError('transport="aiohttp" needs "openai[aiohttp]" installed.') from exc
    return cast("openai.AsyncOpenAI", _copy_of(client, http))


def _copy_of(client: openai.OpenAI | openai.AsyncOpenAI, http: Any) -> object:
    # A client may have been built without credentials (the module client is): copying it must not
    # ask for them. And copy() forgets that responses are to be validated strictly and, before
    # openai 3, which deployment an Azure client is for.
    wrapped = client.copy(http_client=http, _enforce_credentials=False)
    wrapped._strict_response_validation = client._strict_response_validation
    for name in ("_azure_endpoint", "_azure_deployment"):
        if hasattr(client, name):
            setattr(wrapped, name, getattr(client, name))
    return wrapped


def _noting(client: Any) -> Any:
    """Have the client say in its status errors which endpoints were tried.

    The SDK makes such an error above any transport, in one method. It, and the two that make copies
    of the client, are set beside those of the class, which stays what it is.
    """
    cls = cast("Any", type(client))
    if hasattr(cls, "_make_status_error"):
        client._make_status_error = MethodType(_noted(cls), client)
        client.copy = client.with_options = MethodType(_copied(cls), client)
    return client


@functools.lru_cache(CLASSES_MAX)
def _noted(cls: Any) -> Callable[..., Any]:
    @functools.wraps(cls._make_status_error)
    def make(self: Any, *args: Any, **given: Any) -> Any:
        error = cls._make_status_error(self, *args, **given)
        note = error.response.extensions.get(NOTE)
        if note is not None:
            error.add_note(note)
        return error

    return make


@functools.lru_cache(CLASSES_MAX)
def _copied(cls: Any) -> Callable[..., Any]:
    @functools.wraps(cls.copy)
    def copy(self: Any, *args: Any, **given: Any) -> Any:
        return _noting(cls.copy(self, *args, **given))

    return copy


def over(client: OneT, transport: object) -> OneT:
    """The same client, whose requests go through another transport: proxies, mounts and connections
    of its own are left out, hooks and all that the SDK sets stay."""
    http: Any = client._client
    if _is_wrapped(http):
        return client  # `wrap` refuses it
    return cast("OneT", _copy_of(client, _clone(http, transport)))


def _is_wrapped(http: object) -> bool:
    return isinstance(getattr(http, "_transport", None), Transport | AsyncTransport)


def _clone(http: Any, transport: object) -> Any:
    """The user's http client with our transport in it; everything else is shared with it."""
    clone: Any = object.__new__(_clone_class(http.__class__))
    clone.__dict__.update(http.__dict__)
    clone._transport = transport
    clone._mounts = {}  # the original's are asked underneath
    clone._headway_original = http
    return clone


_clone_classes: weakref.WeakKeyDictionary[type, type[Any]] = weakref.WeakKeyDictionary()


def _clone_class(cls: type[Any]) -> type[Any]:
    found = _clone_classes.get(cls)
    if found is None:
        found = _clone_classes[cls] = _made_clone_class(cls)
    return found


def _made_clone_class(cls: Any) -> type[Any]:
    def forget(_self: object) -> None:
        """Leave the connections alone: the SDK's classes close them when collected."""

    def is_closed(self: Any) -> bool:
        # Copies share their connections: closing one closes all, and all say so.
        return bool(cls.is_closed.fget(self) or self._headway_original.is_closed)

    body = {
        "__del__": forget,
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        "is_closed": property(is_closed),
    }
    return type(cls.__name__, (cls,), body)


# --------------------------------------------------------------------------- sharing routers

_shared: list[tuple[object, RouterOptions, weakref.ref[Router]]] = []
_sharing = free_in_children(threading.Lock())
"""Held to look at the list or to add to it, not while a router is made, which may fetch."""


def _shared_router(name: object, options: RouterOptions) -> Router | None:
    _shared[:] = [entry for entry in _shared if entry[2]() is not None]
    for known, known_options, reference in _shared:
        if (
            (router := reference()) is not None
            and _same(known, name)
            and _same_options(known_options, options)
        ):
            return router
    return None


def _router_for(
    client: openai.OpenAI | openai.AsyncOpenAI,
    policy: PolicyArgument | Router | None,
    options: RouterOptions,
) -> Router:
    from headway.policy.builtin import pass_through
    from headway.policy.sources import file_of
    from headway.router import Router

    if isinstance(policy, Router):
        if options:
            raise WrapError(
                f"the router is given: {', '.join(options)} can only be set where it is made."
            )
        return policy
    is_of_environment = False
    if policy is None:
        policy = os.environ.get(POLICY_VARIABLE) or None
        is_of_environment = policy is not None
        if is_of_environment:
            options = _with_keys_of_environment(options)
    # Without a policy, clients of one base URL share what they learn of it.
    # A file is told by where it is: another directory may have one of the same name.
    name = ("builtin", str(client.base_url)) if policy is None else file_of(policy) or policy
    with _sharing:
        found = _shared_router(name, options)
    if found is not None:
        return found
    if policy is None:
        router = Router(pass_through(str(client.base_url)), **options)
    else:
        try:
            router = Router(policy, own_hosts=_own_hosts(str(client.base_url)), **options)
        except PolicyError as error:
            if is_of_environment:  # whoever reads it has no line of code that names a policy
                error.args = (f"{error} (the policy is named by {POLICY_VARIABLE})",)
            raise
    with _sharing:
        found = _shared_router(name, options)  # another thread may have been faster
        if found is None:
            if len(_shared) < SHARED_ROUTERS_MAX:
                _shared.append((name, options, weakref.ref(router)))
            return router
    router.close()
    return found


def _with_keys_of_environment(options: RouterOptions) -> RouterOptions:
    """Whoever names the policy in the environment says there who signs it. Code goes first."""
    keys = os.environ.get(KEYS_VARIABLE)
    if keys and options.get("public_keys") is None:
        from headway.policy.signing import keys_from_text

        try:
            options = {**options, "public_keys": keys_from_text(keys)}
        except ValueError as error:
            raise ValueError(f"{KEYS_VARIABLE}: {error}") from None
    if os.environ.get(UNSIGNED_VARIABLE, "").strip().lower() in ("1", "true", "yes", "on"):
        options = {"allow_unsigned": True, **options}
    return options


def _own_hosts(base_url: str) -> tuple[str, ...]:
    # A fetched policy may always name the host that the client talks to without it.
    try:
        return (str(split_url(base_url)[0]),)
    except ValueError:
        return ()


def _same_options(a: RouterOptions, b: RouterOptions) -> bool:
    # Two empty stores are equal, and not the same.
    return a == b and _same(a.get("response_cache"), b.get("response_cache"))


def _same(a: object, b: object) -> bool:
    # A policy document edited in place is another policy: only identity is safe for objects.
    return a is b or (type(a) is type(b) and isinstance(a, str | tuple | os.PathLike) and a == b)
