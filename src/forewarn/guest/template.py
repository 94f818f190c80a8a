"""The agent.toml that `forewarn-agent init` writes, with every key explained."""

from __future__ import annotations

TEMPLATE = """\
# forewarn-agent: what this machine does when an event names it.
# docs/guide/agent-configuration.md explains every key.
# Only the agent's user and root may have write access to this file.

approve = "when-ready"            # when-ready | first-in-resources | never
reserve = "30s"                   # time kept free before NotBefore; at most a quarter of the notice
# prepare_within = "20m"          # begin to prepare this long before NotBefore; default: at once

# endpoint = "http://169.254.169.254"   # default: this address, or DHCP option 245
# api_version = "2020-07-01"      # use an older version for an older service
# name = "web-0"                  # default: from the endpoint, else the host name
# source_address = "10.0.0.4"     # for machines with several addresses
# poll = "1s"                     # used where the endpoint offers no long poll
# state_dir = "/var/lib/forewarn-agent"
# metrics_file = "/var/lib/prometheus/node-exporter/forewarn-agent.prom"
# boot_id_file = "/proc/sys/kernel/random/boot_id"   # its content changes with every boot
# log_level = "info"              # debug | info | warning | error

# Rules: the first that matches decides what to do with an event; without one, prepare.
[[rules]]
when = { type = ["Freeze"], max_duration = "9s" }   # also: source = ["Platform"]
do = "approve"                    # approve | prepare | prepare-only | ignore

# Steps: prepared in this order before the event, undone in reverse order after it.
# [[steps]]                       # put steps that leave a pool first: first out, last in
# name = "leave the proxies' pool"
# [steps.haproxy]                 # docs/guide/handlers/haproxy.md
# proxies = ["/run/haproxy/admin.sock"]   # or host:port; every proxy that sends requests to this machine
# servers = ["web/web-0"]         # backend/server
# drain_for = "90s"               # sessions still open then are left behind; 0, the default: the step fails instead
# keep = 1                        # so many other servers must be up before ours leaves

# [[steps]]
# name = "leave our own upstream"
# [steps.nginx]                   # docs/guide/handlers/nginx.md
# file = "/etc/nginx/upstreams/web.conf"
# servers = ["10.0.0.4:8080"]

# [[steps]]
# name = "leave the registrar"
# [steps.http]                    # docs/guide/handlers/http.md
# headers_file = "/etc/forewarn/registrar-headers"
# prepare = { method = "DELETE", url = "http://registrar.internal/web/web-0" }
# verify = { url = "http://registrar.internal/web/web-0", status = 404 }
# recover = { method = "PUT", url = "http://registrar.internal/web/web-0", body = '{"port": 8080}' }

# [[steps]]
# name = "stop the worker"
# when = { type = ["Reboot", "Redeploy"] }
# timeout = "2m"                  # the most time it gets; less when the notice is short
# required = true                 # if it fails, the event is not approved
# repeatable = true               # false: not repeated after an interruption
# finish = false                  # true: not interrupted when its event is cancelled
# command = { prepare = ["/usr/local/bin/drain"], verify = ["/usr/local/bin/is-drained"], recover = ["/usr/local/bin/undrain"] }

# [[steps]]
# name = "stop the cache"
# systemd = { unit = "cache.service" }      # or units = ["a.service", "b.service"]; user = true for a user's own unit

# [[steps]]
# name = "stop the web server"
# windows_service = { service = "W3SVC" }   # or services = ["A", "B"]; docs/guide/windows-guests.md

# [[steps]]
# name = "stop the importer"
# [steps.process]
# pid_file = "/run/importer.pid"
# signal = "TERM"
# kill_after = "20s"              # 0, the default: it is never killed, the step fails instead
# start = ["/usr/local/bin/importer"]
# foreground = true               # the program writes no pid file: the agent does
# up_for = "1s"                   # it must live so long to count as up
# match = "importer"              # must occur in its command line: an old pid file may name another process

# [[steps]]
# name = "hand over the database"
# [steps.patroni]                 # docs/guide/handlers/patroni.md
# url = "http://10.0.0.4:8008"    # this machine's own REST API
# member = "pg0"                  # its name in the cluster
# login_file = "/etc/forewarn/patroni"

# [[steps]]
# name = "hand over the cache"
# [steps.redis]                   # docs/guide/handlers/redis.md
# address = "10.0.0.4:6379"       # this machine's own Redis
# sentinels = ["10.0.0.4:26379", "10.0.0.5:26379", "10.0.0.6:26379"]   # without them: by FAILOVER
# master = "shop"                 # the Sentinels' name for it

# [[steps]]
# name = "save the simulation"
# [steps.checkpoint]              # docs/guide/handlers/checkpoint.md
# file = "/var/lib/simulation/checkpoint"
# signal = "USR1"                 # or command = ["/usr/local/bin/save", "{checkpoint}"]
# pid_file = "/run/simulation.pid"
# restore = ["/usr/local/bin/simulation-start", "--from", "{checkpoint}"]

# [[steps]]
# name = "log every change"
# log = { file = "/var/log/forewarn-events.jsonl" }      # or syslog = "daemon"

# [[steps]]
# name = "tell the team"
# notify = { url_file = "/etc/forewarn/webhook", shape = "slack" }   # or shape = "event"

# [[serve.client]]                # a program here that gets events from the agent: docs/guide/agent-clients.md
# name = "billing"
# socket = "/run/forewarn/billing.sock"   # or port = 9001, of 127.0.0.1
# mode = "660"                    # who may connect to the socket
# approves = true                 # the agent waits for its approval
# client_timeout = "5m"           # but not for longer than this if it is silent

# [health]                        # must pass before the machine returns to service
# command = ["curl", "-fsS", "http://127.0.0.1:8080/healthz"]
# timeout = "1m"
"""
