"""The HTTP contract over one IdentityService.

`server` opens the store, loads the models and runs uvicorn as a `limited_server`, with the limits of `connections` and
`protocol`; `app` puts the routes together. A request passes `request_body` (limits, with `body_budget`) and
`middleware` (id, log, metrics, and `hosts`), then its method in `handlers`: `auth` finds the account, `request_parsing`
and `person_parsing` check headers, parameters and bodies, `client_parameters` what we don't have, `thread_pool` runs
the service off the event loop, `listing` makes pages with `cursors`, `serializer` the JSON, `responses` the answer or
the error. `docs` describes the contract in OpenAPI, `admin` answers other commands on a store that this server holds.
`ui/` is the page for people.
"""
