"""The HTTP contract over one IdentityService.

`server` opens the store, loads the models and runs uvicorn as a `limited_server`, with the limits of `connections` and
`protocol`; `app` puts the routes together. A request passes `request_body` (limits) and `middleware` (id, log, metrics,
and `hosts`). `context` makes a `Call` of it (`auth` finds the account) and runs its function in `handlers` on a thread
of a `thread_pool`: `request_parsing` and `person_parsing` check headers, parameters and bodies, `client_parameters`
what we don't have, `listing` makes pages with `cursors`, `serializer` the JSON, `responses` the answer or the error.
`docs` describes the contract in OpenAPI, `admin` answers other commands on a store that this server holds. `ui/` is the
page for people.
"""
