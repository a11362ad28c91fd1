"""The HTTP contract over one IdentityService.

`server` opens the store, loads the models and runs uvicorn as a `limited_server`, with the limits of `connections` and
`protocol`; `app` has the routes. A request passes `request_body` (limits) and `middleware` (id, log, metrics, and
`hosts`). `context` makes a `Call` of it (`auth` finds the account) and runs its function in `handlers` on a thread of a
`thread_pool`. `request_parsing` and `person_parsing` check headers, parameters and bodies; `client_parameters` has
those not supported. `listing` pages results with `cursors`, `serializer` makes JSON, `responses` answers and errors.
`openapi.yaml` describes the contract, `admin` serves other commands. `ui/` is the web UI.
"""
