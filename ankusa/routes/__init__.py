"""The route guard: what may be posted where and from where, decided, kept and set up (spec 02, spec 07 "Routes")."""
