-- The named queries of the shared store. Lists are passed as arrays, the keys of machines as a JSON array.

-- name: scopes_by_name
-- Return the named scopes.
SELECT * FROM scopes WHERE name = ANY(%(names)s::text[]) ORDER BY name;

-- name: scopes_all
-- Return every scope.
SELECT * FROM scopes ORDER BY name;

-- name: scope_names
-- Return the name of every scope.
SELECT name FROM scopes ORDER BY name;

-- name: last_change
-- Return the time of the last change of any scope.
SELECT max(changed) AS at FROM scopes;

-- name: machines_of_scopes
-- Return every machine of the named scopes.
SELECT * FROM machines WHERE scope = ANY(%(names)s::text[]) ORDER BY scope, name;

-- name: machines_by_key
-- Return the machines with these keys, a JSON array of [scope, name].
SELECT m.* FROM jsonb_array_elements(%(keys)s::jsonb) k
JOIN machines m ON m.scope = k ->> 0 AND m.name = k ->> 1 ORDER BY m.scope, m.name;

-- name: machines_on_hosts
-- Return the machines on these hosts.
SELECT * FROM machines
WHERE host <> '' AND host = ANY(%(hosts)s::text[]) ORDER BY scope, name;

-- name: machines_by_identity
-- Return the machines with these identities, a JSON array of [interface, address].
SELECT m.* FROM jsonb_array_elements(%(keys)s::jsonb) k
JOIN machine_addresses a ON a.interface = k ->> 0 AND a.address = k ->> 1
JOIN machines m ON m.scope = a.scope AND m.name = a.name;

-- name: machines_by_instance_id
-- Return the machines with these instance ids.
SELECT * FROM machines WHERE instance_id <> '' AND instance_id = ANY(%(ids)s::text[]);

-- name: machines_all
-- Return every machine.
SELECT * FROM machines ORDER BY scope, name;

-- name: machines_known
-- Return a row for each identity of each machine, in the order of machines.
-- OFFSET 0 lets PostgreSQL merge two ordered reads, which takes half the time of a lookup for each machine.
SELECT m.scope, m.name, m.update_domain, m.fault_domain, m.instance_id, a.interface, a.address
FROM machines m
    LEFT JOIN (SELECT * FROM machine_addresses ORDER BY scope, name OFFSET 0) a ON a.scope = m.scope AND a.name = m.name
ORDER BY m.scope, m.name;

-- name: machines_labelled
-- Return what selectors read of every machine after this key, in the order of machines.
SELECT m.scope, m.name, m.update_domain, m.host, m.labels, h.labels
FROM machines m LEFT JOIN hosts h ON h.name = m.host
WHERE (m.scope, m.name) > (%(scope)s, %(name)s) ORDER BY m.scope, m.name;

-- name: machines_labelled_of_scopes
-- Return what selectors read of the machines of these scopes after this key, in the order of machines.
SELECT m.scope, m.name, m.update_domain, m.host, m.labels, h.labels
FROM machines m LEFT JOIN hosts h ON h.name = m.host
WHERE m.scope = ANY(%(scopes)s::text[]) AND (m.scope, m.name) > (%(scope)s, %(name)s)
ORDER BY m.scope, m.name;

-- name: labels_by_key
-- Return the labels of the machines with these keys, and those of their hosts.
SELECT m.scope, m.name, m.labels, h.labels AS host_labels FROM jsonb_array_elements(%(keys)s::jsonb) k
JOIN machines m ON m.scope = k ->> 0 AND m.name = k ->> 1 LEFT JOIN hosts h ON h.name = m.host;

-- name: addresses_by_key
-- Return the addresses of the machines with these keys.
SELECT a.scope, a.name, a.address FROM jsonb_array_elements(%(keys)s::jsonb) k
JOIN machine_addresses a ON a.scope = k ->> 0 AND a.name = k ->> 1;

-- name: addresses_all
-- Return every address of every machine.
SELECT scope, name, address FROM machine_addresses;

-- name: hosts_by_name
-- Return the rows of the named hosts.
SELECT * FROM hosts WHERE name = ANY(%(names)s::text[]) ORDER BY name;

-- name: hosts_all
-- Return every host that has a row.
SELECT * FROM hosts ORDER BY name;

-- name: scopes_of_maintenances
-- Return the scopes in which these maintenances have open events.
SELECT DISTINCT scope FROM events
WHERE maintenance_id = ANY(%(ids)s::text[]) AND ended IS NULL;

-- name: events_current
-- Return the visible events of these maintenances, and those of the first wave that has planned events.
SELECT * FROM events
WHERE maintenance_id = ANY(%(ids)s::text[]) AND ended IS NULL AND status IN ('Scheduled', 'Started')
UNION ALL
SELECT e.* FROM unnest(%(ids)s::text[]) i CROSS JOIN LATERAL (
    SELECT min(wave) AS wave FROM events p
    WHERE p.maintenance_id = i AND p.status = 'Planned' AND p.ended IS NULL) first
JOIN events e ON e.maintenance_id = i AND e.status = 'Planned' AND e.ended IS NULL AND e.wave = first.wave
ORDER BY number;

-- name: events_unread
-- Return what is known of the events that events_current does not return.
SELECT i AS maintenance_id, (SELECT max(position) FROM events e WHERE e.maintenance_id = i) AS last_position,
  (SELECT max(ended) FROM events e
   WHERE e.maintenance_id = i AND e.started IS NOT NULL AND e.ended IS NOT NULL) AS last_ended,
  (SELECT count(*) FROM events e WHERE e.maintenance_id = i AND e.replaced_by <> '') AS replaced
FROM unnest(%(ids)s::text[]) i;

-- name: maintenances_in_scopes
-- Return the ids of the maintenances with open events in these scopes.
SELECT DISTINCT maintenance_id FROM events WHERE scope = ANY(%(names)s::text[]) AND ended IS NULL;

-- name: events_by_id
-- Return the events with these ids.
SELECT * FROM events WHERE id = ANY(%(ids)s::text[]) ORDER BY number;

-- name: events_open_in_scopes
-- Return the open events of the named scopes.
SELECT * FROM events WHERE scope = ANY(%(names)s::text[])
  AND ended IS NULL ORDER BY number;

-- name: events_next_in_scopes
-- Return the events of the named scopes that may move when the events with these ids end and the machines with these keys move
-- to another host, as Focus.next_events says. A Scheduled
-- event without a wake-up, or that needs no approval, or that has one, comes before those that wait for their notice.
SELECT e.* FROM unnest(%(names)s::text[]) AS n (name) CROSS JOIN LATERAL (
    SELECT c.* FROM events c JOIN maintenances m ON m.id = c.maintenance_id
    WHERE c.scope = n.name AND c.ended IS NULL AND c.status = 'Scheduled' AND c.id <> ALL(%(ids)s::text[])
    ORDER BY m.wake_at IS NOT NULL AND c.needs_approval AND NOT c.born_approved
      AND NOT EXISTS (SELECT 1 FROM approvals a WHERE a.event_id = c.id), c.not_before, c.number LIMIT 1) e
UNION ALL
SELECT e.* FROM scopes s JOIN events e ON e.scope = s.name
WHERE s.name = ANY(%(names)s::text[]) AND e.ended IS NULL AND e.status = 'Planned'
  AND (e.born_approved OR s.max_unavailable <> '')
UNION ALL
SELECT e.* FROM jsonb_array_elements(%(keys)s::jsonb) k
JOIN event_machines x ON x.scope = k ->> 0 AND x.machine = k ->> 1 JOIN events e ON e.number = x.event_number
WHERE e.ended IS NULL AND e.status <> 'Started';

-- name: events_else_of_maintenances
-- Return the events of these maintenances that events_open_in_scopes does not: ended ones, and those in other scopes.
SELECT * FROM events
WHERE maintenance_id = ANY(%(ids)s::text[])
  AND (ended IS NOT NULL OR scope <> ALL(%(names)s::text[])) ORDER BY number;

-- name: maintenances_by_id
-- Return the maintenances with these ids and their targets.
SELECT m.*, t.targets, t.strategy FROM maintenances m LEFT JOIN maintenance_targets t ON t.maintenance_id = m.id
WHERE m.id = ANY(%(ids)s::text[]) ORDER BY m.id;

-- name: maintenances_matching
-- Return those of these maintenances that contain a text. The targets are JSON, whose names are ASCII without a slash: there both
-- parts of the text are searched for, wherever they are.
SELECT m.*, t.targets, t.strategy FROM maintenances m LEFT JOIN maintenance_targets t ON t.maintenance_id = m.id
WHERE m.id = ANY(%(ids)s::text[])
  AND (m.id ILIKE %(pattern)s OR m.type COLLATE "C" ILIKE %(pattern)s OR m.description COLLATE "C" ILIKE %(pattern)s
    OR m.created_by COLLATE "C" ILIKE %(pattern)s
    OR (t.targets COLLATE "C" ILIKE %(scope_part)s AND t.targets COLLATE "C" ILIKE %(name_part)s));

-- name: wave_progress
-- Count the events of these maintenances by wave.
SELECT e.maintenance_id, e.wave, count(*) FILTER (WHERE e.status = 'Completed') AS done,
  count(*) FILTER (WHERE e.status = 'Started' AND coalesce(o.state, '') NOT IN ('failed', 'in-doubt')) AS running,
  count(*) FILTER (WHERE o.state = 'failed') AS failed, count(*) FILTER (WHERE o.state = 'in-doubt') AS in_doubt,
  count(*) FILTER (WHERE e.status IN ('Planned', 'Scheduled')) AS "left",
  count(*) FILTER (WHERE e.status IN ('Cancelled', 'Abandoned')) AS undone,
  max(e.minimum_notice_s) AS notice_s, min(e.published) AS published, max(e.not_before) AS not_before,
  max(e.started) AS started, max(e.ended) FILTER (WHERE e.status = 'Completed') AS completed,
  count(*) FILTER (WHERE e.status = 'Abandoned' OR o.attempt > 1 OR (e.status = 'Completed' AND e.reason <> o.reason))
    AS resolved, max(e.requested_not_before) AS requested_not_before
FROM events e LEFT JOIN orders o ON e.status IN ('Started', 'Completed') AND o.id = e.id
WHERE e.maintenance_id = ANY(%(ids)s::text[]) AND e.replaced_by = ''
  AND (%(scopes)s::text[] IS NULL OR e.scope = ANY(%(scopes)s::text[]))
GROUP BY e.maintenance_id, e.wave ORDER BY e.maintenance_id, e.wave;

-- name: approvals_of_events
-- Return the approvals of these events.
SELECT * FROM approvals WHERE event_id = ANY(%(ids)s::text[]) ORDER BY event_id, at, machine;

-- name: orders_of_events
-- Return the orders with these ids, which are those of their events unless they are orders of hosts.
SELECT * FROM orders WHERE id = ANY(%(ids)s::text[]) ORDER BY id;

-- name: orders_of_hosts
-- Return the orders of the hosts of these maintenances.
SELECT * FROM orders WHERE host <> '' AND maintenance_id = ANY(%(ids)s::text[]) ORDER BY maintenance_id, position;

-- name: orders_on_hosts
-- Return the orders of these hosts that are not over, in any maintenance.
SELECT * FROM orders
WHERE state IN ('planned', 'open', 'running', 'in-doubt', 'failed') AND host <> '' AND host = ANY(%(hosts)s::text[])
ORDER BY id;

-- name: due
-- Return the maintenances whose wake_at has passed, earliest first.
SELECT id FROM maintenances WHERE wake_at <= %(now)s ORDER BY wake_at, id LIMIT %(limit)s;

-- name: due_latest_first
-- Return the maintenances whose wake_at has passed, latest first.
SELECT id FROM maintenances WHERE wake_at <= %(now)s ORDER BY wake_at DESC, id DESC LIMIT %(limit)s;

-- name: next_wakeup
-- Return the earliest wake_at.
SELECT wake_at FROM maintenances WHERE wake_at IS NOT NULL ORDER BY wake_at LIMIT 1;

-- name: orders_in_state
-- Return the oldest orders of events in a state.
SELECT * FROM orders WHERE state = %(state)s AND host = '' ORDER BY issued, id LIMIT %(limit)s;

-- name: orders_of_hosts_in_state
-- Return the oldest orders of hosts in a state.
SELECT * FROM orders WHERE state = %(state)s AND host <> '' ORDER BY issued, id LIMIT %(limit)s;

-- Lists. A page is read in two steps: the keys of its rows, searched for each requested scope, status and type in an index
-- in the page's order; then the rows. `since` is '-infinity' and `scopes` is NULL if all are requested.

-- name: scopes_page
-- Return a page of all scopes.
SELECT * FROM scopes WHERE name > %(after)s ORDER BY name LIMIT %(limit)s;

-- name: machines_page
-- Return a page of all machines.
SELECT * FROM machines WHERE (scope, name) > (%(scope)s, %(name)s) ORDER BY scope, name LIMIT %(limit)s;

-- name: machines_page_of_scope
-- Return a page of the machines of one scope.
SELECT * FROM machines WHERE scope = %(scope)s AND name > %(name)s ORDER BY name LIMIT %(limit)s;

-- name: machines_page_of_host
-- Return a page of the machines on one host.
SELECT * FROM machines
WHERE host <> '' AND host = %(host)s AND (scope, name) > (%(scope)s, %(name)s)
  AND (%(scopes)s::text[] IS NULL OR scope = ANY(%(scopes)s::text[]))
ORDER BY scope, name LIMIT %(limit)s;

-- name: scopes_matching
-- Return a page of the scopes whose name is like a pattern. Reads scopes by the primary key until the page is full.
SELECT * FROM scopes
WHERE name > %(after)s AND name ILIKE %(pattern)s
  AND (%(scopes)s::text[] IS NULL OR name = ANY(%(scopes)s::text[]))
ORDER BY name LIMIT %(limit)s;

-- name: machines_matching
-- Return a page of the machines whose name, host, instance id or address is like a pattern. Reads machines by the primary key
-- until the page is full. `address` is the pattern if the text may be a part of an address, else NULL.
SELECT * FROM machines m
WHERE (scope, name) > (%(scope)s, %(name)s) AND %(host)s IN ('', host)
  AND (%(scopes)s::text[] IS NULL OR scope = ANY(%(scopes)s::text[]))
  AND (name ILIKE %(pattern)s OR scope ILIKE %(pattern)s OR host ILIKE %(pattern)s
       OR instance_id COLLATE "C" ILIKE %(pattern)s
       OR (%(address)s::text IS NOT NULL AND EXISTS (SELECT FROM machine_addresses a
           WHERE a.scope = m.scope AND a.name = m.name AND a.address ILIKE %(address)s::text)))
ORDER BY scope, name LIMIT %(limit)s;

-- name: machines_matching_key
-- Return a page of the machines whose scope and name are like two patterns: first the scopes, then the machines in them.
SELECT m.* FROM scopes s JOIN machines m ON m.scope = s.name
WHERE s.name >= %(scope)s AND s.name ILIKE %(scope_pattern)s
  AND (%(scopes)s::text[] IS NULL OR s.name = ANY(%(scopes)s::text[]))
  AND (m.scope, m.name) > (%(scope)s, %(name)s) AND m.name ILIKE %(name_pattern)s AND %(host)s IN ('', m.host)
ORDER BY m.scope, m.name LIMIT %(limit)s;

-- name: machines_matching_instance_id
-- Return a page of the machines whose instance id is like a pattern. Reads the index of instance ids.
SELECT * FROM machines
WHERE instance_id <> '' AND instance_id COLLATE "C" ILIKE %(pattern)s AND (scope, name) > (%(scope)s, %(name)s)
  AND %(host)s IN ('', host) AND (%(scopes)s::text[] IS NULL OR scope = ANY(%(scopes)s::text[]))
ORDER BY scope, name LIMIT %(limit)s;

-- name: hosts_page
-- Return a page of the hosts whose name is like a pattern, and the number of machines on each. Reads the index of hosts until the
-- page is full.
SELECT host AS name, count(*) AS machines FROM machines
WHERE host <> '' AND host > %(after)s AND host ILIKE %(pattern)s
  AND (%(scopes)s::text[] IS NULL OR scope = ANY(%(scopes)s::text[]))
GROUP BY host ORDER BY host LIMIT %(limit)s;

-- name: host_rows_page
-- Return a page of the hosts that are listed or cordoned and whose name is like a pattern.
SELECT * FROM hosts
WHERE name > %(after)s AND name ILIKE %(pattern)s AND (listed OR cordoned IS NOT NULL) ORDER BY name LIMIT %(limit)s;

-- name: maintenance_keys
-- Return the newest (created, id) of maintenances with a status.
SELECT created AS at, id FROM maintenances
WHERE status = %(kind)s AND (created, id) < (%(at)s, %(id)s) ORDER BY created DESC, id DESC LIMIT %(limit)s;

-- name: maintenance_keys_of_scope
-- Return the newest (created, id) of maintenances with a status and an event in a scope.
SELECT created AS at, maintenance_id AS id FROM maintenance_scopes
WHERE scope = %(scope)s AND status = %(kind)s AND (created, maintenance_id) < (%(at)s, %(id)s)
ORDER BY created DESC, maintenance_id DESC LIMIT %(limit)s;

-- name: host_maintenance_keys
-- Return the newest (created, id) of maintenances with a status that work on hosts.
SELECT created AS at, id FROM maintenances
WHERE host_mode IS NOT NULL AND status = %(kind)s AND (created, id) < (%(at)s, %(id)s)
ORDER BY created DESC, id DESC LIMIT %(limit)s;

-- name: host_maintenance_keys_of_scope
-- Return the newest (created, id) of maintenances with a status that work on hosts and have an event in a scope.
SELECT m.created AS at, m.id FROM maintenances m
WHERE m.host_mode IS NOT NULL AND m.status = %(kind)s AND (m.created, m.id) < (%(at)s, %(id)s)
  AND EXISTS (SELECT 1 FROM maintenance_scopes s WHERE s.maintenance_id = m.id AND s.scope = %(scope)s)
ORDER BY m.created DESC, m.id DESC LIMIT %(limit)s;

-- name: drill_keys
-- Return the newest (created, id) of drills.
SELECT created AS at, id FROM maintenances
WHERE drill_hold_s > 0 AND (created, id) < (%(at)s, %(id)s) ORDER BY created DESC, id DESC LIMIT %(limit)s;

-- name: drill_keys_of_scope
-- Return the newest (created, id) of drills with an event in a scope.
SELECT m.created AS at, m.id FROM maintenances m
WHERE m.drill_hold_s > 0 AND (m.created, m.id) < (%(at)s, %(id)s)
  AND EXISTS (SELECT 1 FROM maintenance_scopes s WHERE s.maintenance_id = m.id AND s.scope = %(scope)s)
ORDER BY m.created DESC, m.id DESC LIMIT %(limit)s;

-- name: order_keys
-- Return the newest (issued, id) of orders in a state; `abandoned` says whether to return those of abandoned events too.
SELECT issued AS at, id FROM orders
WHERE state = %(kind)s AND (issued, id) < (%(at)s, %(id)s)
  AND (%(abandoned)s OR NOT EXISTS (SELECT 1 FROM events e WHERE e.id = orders.id AND e.status = 'Abandoned'))
ORDER BY issued DESC, id DESC LIMIT %(limit)s;

-- name: order_keys_of_scope
-- Return the newest (issued, id) of orders in a state, of events in a scope.
SELECT issued AS at, id FROM orders
WHERE scope = %(scope)s AND state = %(kind)s AND (issued, id) < (%(at)s, %(id)s)
  AND (%(abandoned)s OR NOT EXISTS (SELECT 1 FROM events e WHERE e.id = orders.id AND e.status = 'Abandoned'))
ORDER BY issued DESC, id DESC LIMIT %(limit)s;

-- name: events_by_number
-- Return the events with these numbers, newest first.
SELECT * FROM events WHERE number = ANY(%(numbers)s::bigint[]) ORDER BY number DESC;

-- name: events_matching
-- Return, of these numbers, those of events that contain a text, newest first: in one id, the type, the description or the
-- scope/name of one machine, whose parts have patterns of their own. The collation "C" folds the letters of ASCII only.
SELECT e.number FROM events e
WHERE e.number = ANY(%(numbers)s::bigint[])
  AND (e.id ILIKE %(pattern)s OR e.maintenance_id ILIKE %(pattern)s OR e.type COLLATE "C" ILIKE %(pattern)s
    OR e.description COLLATE "C" ILIKE %(pattern)s OR e.scope ILIKE %(pattern)s
    OR (e.scope ILIKE %(scope_pattern)s AND EXISTS (
      SELECT 1 FROM event_machines x WHERE x.event_number = e.number AND x.machine ILIKE %(name_pattern)s)))
ORDER BY e.number DESC;

-- name: event_numbers_open_matching
-- Return the numbers of the newest open events that contain a text, as events_matching does. Reads the index of open events,
-- which are few, until the page is full.
SELECT e.number FROM events e
WHERE e.ended IS NULL AND e.number < %(before)s AND (%(scopes)s::text[] IS NULL OR e.scope = ANY(%(scopes)s::text[]))
  AND e.status = ANY(%(statuses)s::text[]) AND e.type = ANY(%(types)s::text[])
  AND (e.id ILIKE %(pattern)s OR e.maintenance_id ILIKE %(pattern)s OR e.type COLLATE "C" ILIKE %(pattern)s
    OR e.description COLLATE "C" ILIKE %(pattern)s OR e.scope ILIKE %(pattern)s
    OR (e.scope ILIKE %(scope_pattern)s AND EXISTS (
      SELECT 1 FROM event_machines x WHERE x.event_number = e.number AND x.machine ILIKE %(name_pattern)s)))
ORDER BY e.number DESC LIMIT %(limit)s;

-- name: event_numbers
-- Return the numbers of the newest events.
SELECT number FROM events
WHERE number < %(before)s AND (ended IS NULL OR ended >= %(since)s)
ORDER BY number DESC LIMIT %(limit)s;

-- name: event_numbers_of_kind
-- Return the numbers of the newest events with an ended status and a type.
SELECT number FROM events
WHERE ended IS NOT NULL AND status = %(status)s AND type = %(type)s AND number < %(before)s
  AND ended >= %(since)s
ORDER BY number DESC LIMIT %(limit)s;

-- name: event_numbers_of_scope
-- Return the numbers of the newest events of a scope.
SELECT number FROM events
WHERE scope = %(scope)s AND number < %(before)s AND (ended IS NULL OR ended >= %(since)s)
ORDER BY number DESC LIMIT %(limit)s;

-- name: event_numbers_of_scope_and_kind
-- Return the numbers of the newest events of a scope with an ended status and a type.
SELECT number FROM events
WHERE ended IS NOT NULL AND scope = %(scope)s AND status = %(status)s AND type = %(type)s AND number < %(before)s
  AND ended >= %(since)s
ORDER BY number DESC LIMIT %(limit)s;

-- name: event_numbers_open
-- Return the numbers of the newest open events.
SELECT number FROM events
WHERE ended IS NULL AND number < %(before)s
  AND status = ANY(%(statuses)s::text[]) AND type = ANY(%(types)s::text[])
ORDER BY number DESC LIMIT %(limit)s;

-- name: event_numbers_open_of_scope
-- Return the numbers of the newest open events of a scope.
SELECT number FROM events
WHERE ended IS NULL AND scope = %(scope)s AND number < %(before)s
  AND status = ANY(%(statuses)s::text[]) AND type = ANY(%(types)s::text[])
ORDER BY number DESC LIMIT %(limit)s;

-- name: count_open
-- Count the open events by status, and the Started events and the hosts with a failed order or with an order in doubt.
SELECT count(*) FILTER (WHERE e.status = 'Planned') AS planned, count(*) FILTER (WHERE e.status = 'Scheduled') AS scheduled,
    count(*) FILTER (WHERE e.status = 'Started') AS started,
    count(*) FILTER (WHERE e.status = 'Started' AND o.state = 'failed')
      + (SELECT count(*) FROM orders WHERE host <> '' AND state = 'failed') AS failed,
    count(*) FILTER (WHERE e.status = 'Started' AND o.state = 'in-doubt')
      + (SELECT count(*) FROM orders WHERE host <> '' AND state = 'in-doubt') AS in_doubt
FROM events e LEFT JOIN orders o ON e.status = 'Started' AND o.id = e.id
WHERE e.ended IS NULL;

-- name: count_open_of_scopes
-- Count as count_open does, in the named scopes.
SELECT count(*) FILTER (WHERE e.status = 'Planned') AS planned, count(*) FILTER (WHERE e.status = 'Scheduled') AS scheduled,
    count(*) FILTER (WHERE e.status = 'Started') AS started,
    count(*) FILTER (WHERE e.status = 'Started' AND o.state = 'failed') AS failed,
    count(*) FILTER (WHERE e.status = 'Started' AND o.state = 'in-doubt') AS in_doubt
FROM events e LEFT JOIN orders o ON o.id = e.id
WHERE e.ended IS NULL AND e.scope = ANY(%(scopes)s::text[]);

-- name: open_waves
-- Count the open events that match by maintenance, wave and status; each row also has the totals by status. Reads every open
-- event: they are few. Finds a text as events_matching does.
WITH matching AS MATERIALIZED (
  SELECT e.maintenance_id, e.wave, e.status, e.number
  FROM events e
  WHERE e.ended IS NULL AND (%(scopes)s::text[] IS NULL OR e.scope = ANY(%(scopes)s::text[]))
    AND e.status = ANY(%(statuses)s::text[]) AND e.type = ANY(%(types)s::text[])
    AND (%(host)s::text = '' OR EXISTS (
      SELECT 1 FROM event_machines x JOIN machines h ON h.scope = x.scope AND h.name = x.machine
      WHERE x.event_number = e.number AND h.host = %(host)s::text))
    AND (%(pattern)s::text = '%%%%'
      OR e.id ILIKE %(pattern)s OR e.maintenance_id ILIKE %(pattern)s OR e.type COLLATE "C" ILIKE %(pattern)s
      OR e.description COLLATE "C" ILIKE %(pattern)s OR e.scope ILIKE %(pattern)s
      OR (e.scope ILIKE %(scope_pattern)s AND EXISTS (
        SELECT 1 FROM event_machines x WHERE x.event_number = e.number AND x.machine ILIKE %(name_pattern)s)))
), waves AS (
  SELECT maintenance_id, wave, status, count(*) AS events, max(number) AS newest
  FROM matching GROUP BY maintenance_id, wave, status ORDER BY newest DESC LIMIT %(limit)s
), totals AS (
  SELECT count(*) FILTER (WHERE status = 'Planned') AS planned, count(*) FILTER (WHERE status = 'Scheduled') AS scheduled,
    count(*) FILTER (WHERE status = 'Started') AS started
  FROM matching
)
SELECT w.maintenance_id, w.wave, w.status, w.events, m.type, m.description, m.created, t.planned, t.scheduled, t.started
FROM waves w CROSS JOIN totals t JOIN maintenances m ON m.id = w.maintenance_id
ORDER BY w.newest DESC;

-- name: open_waves_all
-- Count all open events as open_waves does.
WITH grouped AS MATERIALIZED (
  SELECT maintenance_id, wave, status, count(*) AS events, max(number) AS newest
  FROM events e WHERE e.ended IS NULL GROUP BY maintenance_id, status, wave
), waves AS (
  SELECT * FROM grouped ORDER BY newest DESC LIMIT %(limit)s
), totals AS (
  SELECT coalesce(sum(events) FILTER (WHERE status = 'Planned'), 0)::bigint AS planned,
    coalesce(sum(events) FILTER (WHERE status = 'Scheduled'), 0)::bigint AS scheduled,
    coalesce(sum(events) FILTER (WHERE status = 'Started'), 0)::bigint AS started
  FROM grouped
)
SELECT w.maintenance_id, w.wave, w.status, w.events, m.type, m.description, m.created, t.planned, t.scheduled, t.started
FROM waves w CROSS JOIN totals t JOIN maintenances m ON m.id = w.maintenance_id
ORDER BY w.newest DESC;

-- name: backlog
-- Return the earliest start and wake-up, and count the open and running orders.
SELECT (SELECT min(not_before) FROM events WHERE ended IS NULL AND status = 'Scheduled') AS earliest_start,
    (SELECT min(wake_at) FROM maintenances WHERE wake_at IS NOT NULL) AS earliest_wake,
    (SELECT count(*) FROM orders WHERE state = 'open') AS open, (SELECT count(*) FROM orders WHERE state = 'running') AS running;

-- name: count_scopes
-- Count all scopes.
SELECT count(*) AS scopes FROM scopes;

-- name: count_scopes_of
-- Count the named scopes that exist.
SELECT count(*) AS scopes FROM scopes WHERE name = ANY(%(scopes)s::text[]);

-- name: count_machines
-- Count all machines.
SELECT count(*) AS machines FROM machines;

-- name: count_machines_of
-- Count the machines of the named scopes.
SELECT count(*) AS machines FROM machines WHERE scope = ANY(%(scopes)s::text[]);

-- name: machine_counts
-- Count the machines of each named scope.
SELECT scope, count(*) AS machines FROM machines WHERE scope = ANY(%(scopes)s::text[]) GROUP BY scope;

-- name: event_numbers_of_machine
-- Return the numbers of the newest events of a machine.
SELECT e.number FROM event_machines m JOIN events e ON e.number = m.event_number
WHERE m.scope = %(scope)s AND m.machine = %(machine)s AND m.event_number < %(before)s
  AND %(maintenance_id)s IN ('', e.maintenance_id) AND (e.ended IS NULL OR e.ended >= %(since)s)
  AND e.status = ANY(%(statuses)s::text[]) AND e.type = ANY(%(types)s::text[])
ORDER BY m.event_number DESC LIMIT %(limit)s;

-- name: event_numbers_of_host
-- Return the numbers of the newest events of the machines that are on a host now.
SELECT DISTINCT e.number FROM machines h
JOIN event_machines m ON m.scope = h.scope AND m.machine = h.name JOIN events e ON e.number = m.event_number
WHERE h.host <> '' AND h.host = %(host)s AND m.event_number < %(before)s
  AND %(maintenance_id)s IN ('', e.maintenance_id) AND (e.ended IS NULL OR e.ended >= %(since)s)
  AND (%(scopes)s::text[] IS NULL OR e.scope = ANY(%(scopes)s::text[]))
  AND e.status = ANY(%(statuses)s::text[]) AND e.type = ANY(%(types)s::text[])
ORDER BY e.number DESC LIMIT %(limit)s;

-- name: event_numbers_of_maintenance
-- Return the numbers of the newest events of a maintenance.
SELECT number FROM events
WHERE maintenance_id = %(maintenance_id)s AND number < %(before)s
  AND (ended IS NULL OR ended >= %(since)s)
  AND (%(scopes)s::text[] IS NULL OR scope = ANY(%(scopes)s::text[]))
  AND status = ANY(%(statuses)s::text[]) AND type = ANY(%(types)s::text[])
ORDER BY number DESC LIMIT %(limit)s;

-- name: more_ended_since
-- Return a row if more than `most` events ended since then.
SELECT ended FROM events WHERE ended IS NOT NULL AND ended >= %(since)s LIMIT 1 OFFSET %(most)s;

-- name: event_numbers_ended_since
-- Return the numbers of all events that ended since then.
SELECT number FROM events
WHERE ended IS NOT NULL AND ended >= %(since)s AND number < %(before)s
  AND (%(scopes)s::text[] IS NULL OR scope = ANY(%(scopes)s::text[]))
  AND status = ANY(%(statuses)s::text[]) AND type = ANY(%(types)s::text[]);

-- name: audit
-- Return a page of the whole audit, newest first.
SELECT * FROM audit WHERE id < %(before)s ORDER BY id DESC LIMIT %(limit)s;

-- name: audit_by_id
-- Return the audit entries with these ids.
SELECT * FROM audit WHERE id = ANY(%(ids)s::bigint[]);

-- name: audit_ids_of_scope
-- Return the ids of a scope's newest audit entries.
SELECT id AS number FROM audit
WHERE scope <> '' AND scope = %(scope)s AND id < %(before)s ORDER BY id DESC LIMIT %(limit)s;

-- name: audit_of_maintenance
-- Return a page of a maintenance's audit entries, newest first.
SELECT * FROM audit
WHERE maintenance_id <> '' AND maintenance_id = %(maintenance_id)s AND id < %(before)s
  AND (%(scopes)s::text[] IS NULL OR scope = ANY(%(scopes)s::text[]))
ORDER BY id DESC LIMIT %(limit)s;

-- name: audit_of_event
-- Return a page of an event's audit entries, newest first.
SELECT * FROM audit
WHERE event_id <> '' AND event_id = %(event_id)s AND id < %(before)s AND %(maintenance_id)s IN ('', maintenance_id)
  AND (%(scopes)s::text[] IS NULL OR scope = ANY(%(scopes)s::text[]))
ORDER BY id DESC LIMIT %(limit)s;

-- name: audit_stream
-- Return the next entries of the whole audit, oldest first.
SELECT * FROM audit WHERE id > %(after)s ORDER BY id LIMIT %(limit)s;

-- name: audit_stream_ids_of_scope
-- Return the ids of a scope's next audit entries, oldest first.
SELECT id AS number FROM audit
WHERE scope <> '' AND scope = %(scope)s AND id > %(after)s ORDER BY id LIMIT %(limit)s;

-- name: audit_stream_of_maintenance
-- Return a maintenance's next audit entries, oldest first.
SELECT * FROM audit
WHERE maintenance_id <> '' AND maintenance_id = %(maintenance_id)s AND id > %(after)s
  AND (%(scopes)s::text[] IS NULL OR scope = ANY(%(scopes)s::text[]))
ORDER BY id LIMIT %(limit)s;

-- name: audit_stream_of_event
-- Return an event's next audit entries, oldest first.
SELECT * FROM audit
WHERE event_id <> '' AND event_id = %(event_id)s AND id > %(after)s AND %(maintenance_id)s IN ('', maintenance_id)
  AND (%(scopes)s::text[] IS NULL OR scope = ANY(%(scopes)s::text[]))
ORDER BY id LIMIT %(limit)s;

-- name: tokens_all
-- Return every token, newest first.
SELECT * FROM tokens ORDER BY created DESC, id DESC;

-- name: token_uses
-- Return when each token was last used.
SELECT token_id, at FROM token_uses;

-- name: session
-- Return a login by the digest of its session id.
SELECT * FROM sessions WHERE digest = %(digest)s;

-- name: receipt
-- Return the receipt of a request.
SELECT * FROM receipts WHERE token_id = %(token_id)s AND key = %(key)s;

-- name: versions
-- Lock the named scopes in the order of their names, so that two changes cannot deadlock, and return their versions.
SELECT name, version FROM scopes WHERE name = ANY(%(names)s::text[]) ORDER BY name FOR NO KEY UPDATE;

-- name: update_scope
-- Update a scope that has this version. If it has another, this changes no row, and the store raises Conflict; it is locked
-- all the same, so that a change that will be refused waits here for the one that came first.
WITH locked AS MATERIALIZED (SELECT name, version FROM scopes WHERE name = %(name)s FOR NO KEY UPDATE)
UPDATE scopes s SET kind = %(kind)s, approval = %(approval)s, approve_user_events = %(approve_user_events)s,
    max_user_operations = %(max_user_operations)s, terminate_notice_s = %(terminate_notice_s)s,
    minimum_notice_s = %(minimum_notice_s)s, enabled = %(enabled)s, epoch = %(epoch)s, incarnation = %(incarnation)s,
    changed = %(changed)s, windows = %(windows)s, max_unavailable = %(max_unavailable)s,
    approval_opens_window = %(approval_opens_window)s, version = %(version)s + 1
FROM locked WHERE s.name = locked.name AND locked.version = %(version)s;

-- name: put_scope
-- Add or replace a scope.
INSERT INTO scopes VALUES (%(name)s, %(kind)s, %(approval)s, %(approve_user_events)s, %(max_user_operations)s,
    %(terminate_notice_s)s, %(minimum_notice_s)s, %(enabled)s, %(epoch)s, %(incarnation)s, %(version)s + 1,
    %(changed)s, %(windows)s, %(max_unavailable)s, %(approval_opens_window)s)
ON CONFLICT (name) DO UPDATE SET kind = excluded.kind, approval = excluded.approval,
    approve_user_events = excluded.approve_user_events, max_user_operations = excluded.max_user_operations,
    terminate_notice_s = excluded.terminate_notice_s, minimum_notice_s = excluded.minimum_notice_s,
    enabled = excluded.enabled, epoch = excluded.epoch, incarnation = excluded.incarnation,
    version = excluded.version, changed = excluded.changed, windows = excluded.windows,
    max_unavailable = excluded.max_unavailable, approval_opens_window = excluded.approval_opens_window;

-- name: add_scope
-- Add a scope. If it exists, this changes no row, and the store raises Conflict.
INSERT INTO scopes VALUES (%(name)s, %(kind)s, %(approval)s, %(approve_user_events)s, %(max_user_operations)s,
    %(terminate_notice_s)s, %(minimum_notice_s)s, %(enabled)s, %(epoch)s, %(incarnation)s, %(version)s + 1,
    %(changed)s, %(windows)s, %(max_unavailable)s, %(approval_opens_window)s)
ON CONFLICT DO NOTHING;

-- name: remove_scope
-- Delete a scope.
DELETE FROM scopes WHERE name = %(name)s;

-- name: put_machines
-- Add or replace machines. Each value is a JSON list with an item for each machine.
INSERT INTO machines
SELECT scope, name, update_domain::integer, fault_domain::integer, host, interface, instance_id, labels
FROM ROWS FROM (
    json_array_elements_text(%(scope)s), json_array_elements_text(%(name)s),
    json_array_elements_text(%(update_domain)s), json_array_elements_text(%(fault_domain)s),
    json_array_elements_text(%(host)s), json_array_elements_text(%(interface)s),
    json_array_elements_text(%(instance_id)s), json_array_elements_text(%(labels)s)
) AS given (scope, name, update_domain, fault_domain, host, interface, instance_id, labels)
ON CONFLICT (scope, name) DO UPDATE SET update_domain = excluded.update_domain, fault_domain = excluded.fault_domain,
    host = excluded.host, interface = excluded.interface, instance_id = excluded.instance_id,
    labels = excluded.labels;

-- name: clear_instance_id
-- Clear the instance id of a machine. Machines may swap identities in one change: clear all old ones before adding new ones.
UPDATE machines SET instance_id = '' WHERE scope = %(scope)s AND name = %(name)s AND instance_id <> '';

-- name: clear_addresses
-- Delete the addresses of a machine.
DELETE FROM machine_addresses WHERE scope = %(scope)s AND name = %(name)s;

-- name: put_addresses
-- Add addresses of machines. Each value is a JSON list with an item for each address.
INSERT INTO machine_addresses
SELECT * FROM ROWS FROM (
    json_array_elements_text(%(interface)s), json_array_elements_text(%(address)s),
    json_array_elements_text(%(scope)s), json_array_elements_text(%(name)s)
) AS given;

-- name: remove_machine
-- Delete a machine.
DELETE FROM machines WHERE scope = %(scope)s AND name = %(name)s;

-- name: add_maintenance
-- Add a maintenance. If it exists, this changes no row, and the store raises Conflict.
INSERT INTO maintenances VALUES (%(id)s, %(type)s, %(source)s, %(created)s, %(created_by)s, %(not_before)s,
    %(earliest)s, %(duration_s)s, %(description)s, %(emergency)s, %(on_failure)s, %(paused)s, %(cancelled)s,
    %(status)s, %(wake_at)s, %(version)s + 1, %(ended)s, %(told)s, %(host_mode)s,
    %(return_machines)s, %(to_host)s, %(not_after)s, %(drill_hold_s)s, %(continued_after)s,
    %(waits_for_budget)s)
ON CONFLICT (id) DO NOTHING;

-- name: add_targets
-- Add the targets of a new maintenance.
INSERT INTO maintenance_targets VALUES (%(maintenance_id)s, %(targets)s, %(strategy)s);

-- name: update_maintenance
-- Update a maintenance. If its version changed, this changes no row, and the store raises Conflict.
UPDATE maintenances SET paused = %(paused)s, cancelled = %(cancelled)s, status = %(status)s, wake_at = %(wake_at)s,
    version = %(version)s + 1, ended = %(ended)s, told = %(told)s,
    continued_after = %(continued_after)s, waits_for_budget = %(waits_for_budget)s
WHERE id = %(id)s AND version = %(version)s;

-- name: wake_maintenances
-- Let the ticker work on these maintenances now, and on those that wait for the budget of the fleet if requested, unless they have
-- ended. Locks them in the order of their ids.
UPDATE maintenances m SET wake_at = %(at)s, version = m.version + 1
FROM (SELECT id FROM maintenances WHERE id IN (
    SELECT unnest(%(ids)s::text[]) UNION SELECT id FROM maintenances WHERE waits_for_budget AND %(waiting_for_budget)s)
    ORDER BY id FOR NO KEY UPDATE) woken
WHERE m.id = woken.id AND m.ended IS NULL;

-- name: put_event
-- Add or update an event. If its id belongs to another maintenance, this changes no row, and the store raises InvariantBroken.
INSERT INTO events (id, maintenance_id, wave, position, scope, update_domain, type, source, resources, description,
    duration_s, emergency, status, born_approved, needs_approval, approval, sequence, published, not_before,
    minimum_notice_s, started, ended, reason, host, to_host, group_name, replaces, reschedules, requested_not_before,
    replaced_by)
VALUES (%(id)s, %(maintenance_id)s, %(wave)s, %(position)s, %(scope)s, %(update_domain)s, %(type)s, %(source)s,
    %(resources)s, %(description)s, %(duration_s)s, %(emergency)s, %(status)s, %(born_approved)s,
    %(needs_approval)s, %(approval)s, %(sequence)s, %(published)s, %(not_before)s, %(minimum_notice_s)s,
    %(started)s, %(ended)s, %(reason)s, %(host)s, %(to_host)s, %(group_name)s, %(replaces)s, %(reschedules)s,
    %(requested_not_before)s, %(replaced_by)s)
ON CONFLICT (id) DO UPDATE SET wave = excluded.wave, status = excluded.status, needs_approval = excluded.needs_approval,
    approval = excluded.approval, sequence = excluded.sequence, published = excluded.published,
    not_before = excluded.not_before, minimum_notice_s = excluded.minimum_notice_s, started = excluded.started,
    ended = excluded.ended, reason = excluded.reason, replaced_by = excluded.replaced_by
WHERE events.maintenance_id = excluded.maintenance_id;

-- name: add_approval
-- Add an approval. If it exists, this changes no row, and the store raises Conflict.
INSERT INTO approvals VALUES (%(event_id)s, %(machine)s, %(who)s, %(at)s, %(origin)s) ON CONFLICT DO NOTHING;

-- name: put_order
-- Add or update an order; it is listed under its event's scope, the order of a host under none.
INSERT INTO orders (id, issued, deadline, state, attempt, node, taken, ended, reason, output, host, maintenance_id, position,
    phase, reschedules, requested_not_before, scope)
VALUES (%(id)s::text, %(issued)s, %(deadline)s, %(state)s, %(attempt)s, %(node)s, %(taken)s, %(ended)s, %(reason)s, %(output)s,
    %(host)s::text, %(maintenance_id)s, %(position)s, %(phase)s, %(reschedules)s, %(requested_not_before)s,
    CASE WHEN %(host)s::text = '' THEN (SELECT scope FROM events WHERE events.id = %(id)s::text) ELSE '' END)
ON CONFLICT (id) DO UPDATE SET issued = excluded.issued, deadline = excluded.deadline, state = excluded.state,
    attempt = excluded.attempt, node = excluded.node, taken = excluded.taken, ended = excluded.ended,
    reason = excluded.reason, output = excluded.output, phase = excluded.phase, position = excluded.position,
    reschedules = excluded.reschedules, requested_not_before = excluded.requested_not_before;

-- name: add_audit
-- Add audit entries, a JSON array; a trigger chains each to the entry before.
INSERT INTO audit (at, who, action, origin, scope, maintenance_id, event_id, detail)
SELECT at, who, action, origin, scope, maintenance_id, event_id, detail FROM ROWS FROM (json_to_recordset(%(audit)s)
    AS (at timestamptz, who text, action text, origin text, scope text, maintenance_id text, event_id text, detail text))
    WITH ORDINALITY ORDER BY ordinality;

-- name: audit_start
-- Return where the chain of the audit begins.
SELECT id, hash FROM audit_start;

-- name: newest_audit
-- Return the newest audit entry, the head of the chain.
SELECT id, hash FROM audit ORDER BY id DESC LIMIT 1;

-- name: oldest_audit
-- Return the oldest audit entries.
SELECT id, at, hash FROM audit ORDER BY id LIMIT %(limit)s;

-- name: move_audit_start
-- Record the newest entry that is pruned as the beginning of the chain.
UPDATE audit_start SET id = %(id)s, hash = %(hash)s WHERE id < %(id)s;

-- name: add_token
-- Add a token. If its id or digest exists, this changes no row, and the store raises Conflict.
INSERT INTO tokens VALUES (%(id)s, %(name)s, %(role)s, %(scopes)s, %(digest)s, %(created)s, %(created_by)s, %(expires)s)
ON CONFLICT DO NOTHING;

-- name: remove_token
-- Delete a token.
DELETE FROM tokens WHERE id = %(id)s;

-- name: record_token_use
-- Record the last use of a token. A token that no longer exists is not recorded.
INSERT INTO token_uses
SELECT id, %(at)s FROM tokens WHERE id = %(token_id)s
ON CONFLICT (token_id) DO UPDATE SET at = greatest(token_uses.at, excluded.at);

-- name: add_host
-- Add a host. If it has a row, this changes no row, and the store raises Conflict.
INSERT INTO hosts VALUES (%(name)s, %(labels)s, %(fault_domain)s, %(connection)s, %(listed)s, %(cordoned)s, %(cordoned_by)s, 1)
ON CONFLICT DO NOTHING;

-- name: update_host
-- Save a host that has not changed since it was read.
UPDATE hosts SET labels = %(labels)s, fault_domain = %(fault_domain)s, connection = %(connection)s, listed = %(listed)s,
    cordoned = %(cordoned)s, cordoned_by = %(cordoned_by)s, version = version + 1
WHERE name = %(name)s AND version = %(version)s;

-- name: remove_host
-- Delete the row of a host that has not changed since it was read.
DELETE FROM hosts WHERE name = %(name)s AND version = %(version)s;

-- name: hooks_all
-- Return every hook, oldest first.
SELECT * FROM hooks ORDER BY created, id;

-- name: add_hook
-- Add a hook. If its id exists, this changes no row, and the store raises Conflict.
INSERT INTO hooks VALUES (%(id)s, %(url)s, %(scope)s, %(kinds)s, %(shape)s, %(secrets)s, %(old_secrets_until)s,
    %(created)s, %(created_by)s, %(cursor)s, %(delivered)s, %(failing_since)s, %(failures)s, %(error)s, %(disabled)s,
    %(gap_after)s, %(gap_until)s, 1, %(owner_token)s)
ON CONFLICT DO NOTHING;

-- name: update_hook
-- Save a hook that has not changed since it was read.
UPDATE hooks SET secrets = %(secrets)s, old_secrets_until = %(old_secrets_until)s, cursor = %(cursor)s,
    delivered = %(delivered)s, failing_since = %(failing_since)s, failures = %(failures)s, error = %(error)s,
    disabled = %(disabled)s, gap_after = %(gap_after)s, gap_until = %(gap_until)s,
    owner_token = %(owner_token)s, version = version + 1
WHERE id = %(id)s AND version = %(version)s;

-- name: remove_hook
-- Delete a hook with its deliveries.
DELETE FROM hooks WHERE id = %(id)s;

-- name: put_delivery
-- Record the last attempt to deliver an entry.
INSERT INTO hook_deliveries VALUES (%(hook_id)s, %(audit_id)s, %(kind)s, %(at)s, %(attempts)s, %(delivered)s,
    %(status)s, %(took_ms)s, %(error)s)
ON CONFLICT (hook_id, audit_id) DO UPDATE
SET kind = excluded.kind, at = excluded.at, attempts = excluded.attempts, delivered = excluded.delivered,
    status = excluded.status, took_ms = excluded.took_ms, error = excluded.error;

-- name: limit_deliveries
-- Delete the deliveries of a hook except those that were attempted last.
DELETE FROM hook_deliveries WHERE hook_id = %(hook_id)s AND audit_id IN
    (SELECT audit_id FROM hook_deliveries WHERE hook_id = %(hook_id)s
     ORDER BY at DESC, audit_id DESC OFFSET %(keep)s);

-- name: deliveries
-- Return a page of a hook's deliveries, newest entry first.
SELECT * FROM hook_deliveries WHERE hook_id = %(hook_id)s AND audit_id < %(before)s
ORDER BY audit_id DESC LIMIT %(limit)s;

-- name: add_session
-- Add a login. If it exists, this changes no row, and the store raises Conflict.
INSERT INTO sessions VALUES (%(digest)s, %(token_id)s, %(created)s, %(expires)s) ON CONFLICT DO NOTHING;

-- name: limit_sessions
-- Delete the logins of a token except those that end last.
DELETE FROM sessions WHERE digest IN
    (SELECT digest FROM sessions WHERE token_id = %(token_id)s
     ORDER BY expires DESC, digest DESC LIMIT ALL OFFSET %(keep)s);

-- name: end_session
-- Delete a login.
DELETE FROM sessions WHERE digest = %(digest)s;

-- name: end_sessions_of_token
-- Delete every login with a token.
DELETE FROM sessions WHERE token_id = %(token_id)s;

-- name: end_all_sessions
-- Delete every login.
DELETE FROM sessions;

-- name: forget_sessions
-- Delete logins that have ended.
DELETE FROM sessions WHERE digest IN
    (SELECT digest FROM sessions WHERE expires < %(before)s ORDER BY expires LIMIT %(limit)s);

-- name: add_receipt
-- Add a receipt. If it exists, this changes no row, and the store raises Conflict.
INSERT INTO receipts VALUES (%(token_id)s, %(key)s, %(digest)s, %(status)s, %(body)s, %(at)s) ON CONFLICT DO NOTHING;

-- name: old_maintenances
-- Return maintenances that ended before then, oldest first.
SELECT id FROM maintenances WHERE ended IS NOT NULL AND ended < %(before)s ORDER BY ended LIMIT %(limit)s;

-- name: forget_events
-- Delete some events of these maintenances.
DELETE FROM events WHERE number IN
    (SELECT number FROM events WHERE maintenance_id = ANY(%(ids)s::text[]) LIMIT %(limit)s);

-- name: forget_maintenances
-- Delete these maintenances if they have no events left.
DELETE FROM maintenances WHERE id = ANY(%(ids)s::text[])
    AND NOT EXISTS (SELECT FROM events WHERE maintenance_id = maintenances.id);

-- name: forget_audit
-- Delete the audit entries up to an id.
DELETE FROM audit WHERE id <= %(id)s;

-- name: forget_receipts
-- Delete the oldest receipts.
DELETE FROM receipts WHERE (token_id, key) IN
    (SELECT token_id, key FROM receipts WHERE at < %(before)s ORDER BY at LIMIT %(limit)s);

-- name: record_last_seen
-- Record a machine's last request. A machine that no longer exists is not recorded.
INSERT INTO last_seen
SELECT scope, name, %(at)s FROM machines WHERE scope = %(scope)s AND name = %(name)s
ON CONFLICT (scope, name) DO UPDATE SET at = greatest(last_seen.at, excluded.at);

-- name: last_seen_by_scope
-- Return the last request from each of the named scopes.
SELECT scope, max(at) AS at FROM last_seen WHERE scope = ANY(%(names)s::text[]) GROUP BY scope;

-- name: last_seen_by_key
-- Return the last requests of the machines with these keys.
SELECT s.* FROM jsonb_array_elements(%(keys)s::jsonb) k
JOIN last_seen s ON s.scope = k ->> 0 AND s.name = k ->> 1;

-- name: record_first_seen
-- Record when a machine first saw an event, once. An event that no longer exists is not recorded.
INSERT INTO sightings SELECT id, %(machine)s, %(at)s FROM events WHERE id = %(event_id)s ON CONFLICT DO NOTHING;

-- name: sightings_of_event
-- Return when each machine first saw an event.
SELECT machine, at FROM sightings WHERE event_id = %(event_id)s ORDER BY machine;

-- name: machines_named
-- Return the machines with a name, by scope.
SELECT * FROM machines WHERE name = %(name)s ORDER BY scope LIMIT %(limit)s;

-- name: event_ids_starting
-- Return event ids in a range, by the unique index of the ids.
SELECT id FROM events
WHERE id >= %(prefix)s AND id < %(after)s AND (%(scopes)s::text[] IS NULL OR scope = ANY(%(scopes)s::text[]))
ORDER BY id LIMIT %(limit)s;

-- name: order_ids_starting
-- Return order ids in a range, by the primary key.
SELECT id FROM orders
WHERE id >= %(prefix)s AND id < %(after)s AND (%(scopes)s::text[] IS NULL OR scope = ANY(%(scopes)s::text[]))
ORDER BY id LIMIT %(limit)s;

-- name: maintenance_ids_starting
-- Return maintenance ids in a range, by the primary key.
SELECT id FROM maintenances
WHERE id >= %(prefix)s AND id < %(after)s
  AND (%(scopes)s::text[] IS NULL OR EXISTS (SELECT 1 FROM maintenance_scopes s
                                             WHERE s.maintenance_id = maintenances.id
                                               AND s.scope = ANY(%(scopes)s::text[])))
ORDER BY id LIMIT %(limit)s;

-- name: rules_and_holds
-- Return one row: the rules of the fleet; the hold of the clock, if `trusted` is set; and the hold of the store, resumed or
-- not, if `held` is set.
SELECT windows, no_go_times, max_hosts_down, max_machines_down, version, reservations,
    trusted, noticed, jumped_s, node, confirmed, cause, detail, who, held, resumed
FROM fleet_rules f LEFT JOIN clock_hold c ON c.one LEFT JOIN store_hold s ON s.one WHERE f.one;

-- name: machines_down
-- Count the machines in published and Started events.
SELECT count(DISTINCT m.scope || '/' || m.machine) AS machines
FROM events e JOIN event_machines m ON m.event_number = e.number
WHERE e.status IN ('Scheduled', 'Started');

-- name: hosts_down
-- Return the hosts that maintenances work on, empty, or take down because they group machines by host.
SELECT e.maintenance_id, e.host FROM events e WHERE e.status IN ('Scheduled', 'Started') AND e.host <> ''
UNION
SELECT e.maintenance_id, e.group_name FROM events e
JOIN maintenance_targets t ON t.maintenance_id = e.maintenance_id
WHERE e.status IN ('Scheduled', 'Started') AND e.group_name <> '' AND t.strategy::jsonb ->> 'group_by' = 'host'
UNION
SELECT maintenance_id, host FROM orders
WHERE host <> '' AND state IN ('open', 'running', 'in-doubt', 'failed')
UNION
SELECT o.maintenance_id, o.host FROM orders o
WHERE o.host <> '' AND o.state = 'planned' AND EXISTS (SELECT 1 FROM events e
    WHERE e.host <> '' AND e.maintenance_id = o.maintenance_id AND e.host = o.host AND e.status = 'Completed');

-- name: events_down
-- Return the oldest published and Started events.
SELECT id FROM events WHERE status IN ('Scheduled', 'Started') ORDER BY number LIMIT %(limit)s;

-- name: count_use
-- Record that something is up again, or is down that waits for no budget, if the fleet has a budget.
UPDATE fleet_rules SET reservations = reservations + 1 WHERE one AND (max_hosts_down > 0 OR max_machines_down > 0);

-- name: update_fleet_rules
-- Change the rules of the fleet. If their version changed, this changes no row, and the store raises Conflict.
UPDATE fleet_rules SET windows = %(windows)s, no_go_times = %(no_go_times)s, max_hosts_down = %(max_hosts_down)s,
    max_machines_down = %(max_machines_down)s, version = %(version)s + 1
WHERE one AND version = %(version)s;

-- name: reserve
-- Count a reservation. If another came first, this changes no row, and the store raises Conflict.
UPDATE fleet_rules SET reservations = %(reservations)s + 1 WHERE one AND reservations = %(reservations)s;

-- name: hold_clock
-- Hold the clock. Of two holds the earlier one stays, unless it is confirmed.
INSERT INTO clock_hold VALUES (true, %(trusted)s, %(noticed)s, %(jumped_s)s, %(node)s, %(confirmed)s)
ON CONFLICT (one) DO UPDATE SET trusted = excluded.trusted, noticed = excluded.noticed, jumped_s = excluded.jumped_s,
    node = excluded.node, confirmed = excluded.confirmed
WHERE excluded.trusted < clock_hold.trusted OR clock_hold.confirmed IS NOT NULL;

-- name: release_clock
-- Confirm the hold that the operator saw. If there is another one, this changes no row, and the store raises Conflict.
UPDATE clock_hold SET confirmed = %(at)s
WHERE one AND trusted = %(trusted)s AND noticed = %(noticed)s AND confirmed IS NULL;

-- name: wake_everything
-- Let the ticker work on every unfinished maintenance now.
UPDATE maintenances SET wake_at = %(at)s, version = version + 1
WHERE status IN ('Planned', 'Running', 'Paused');

-- name: lock_store_hold
-- Return whether the store is held. No other transaction can hold or resume it before this one ends.
SELECT resumed IS NULL AS held FROM store_hold WHERE one FOR SHARE;

-- name: hold_store
-- Hold the store. A hold that is not resumed stays.
INSERT INTO store_hold VALUES (true, %(cause)s, %(detail)s, %(who)s, %(held)s, NULL, '')
ON CONFLICT (one) DO UPDATE SET cause = excluded.cause, detail = excluded.detail, who = excluded.who,
    held = excluded.held, resumed = NULL
WHERE store_hold.resumed IS NOT NULL;

-- name: resume_store
-- Resume the store from the hold that the operator saw. If there is another one, this changes no row, and the store raises
-- Conflict.
UPDATE store_hold SET resumed = %(at)s, identity = (SELECT identity FROM cluster)
WHERE one AND held = %(held)s AND resumed IS NULL;

-- name: position
-- Return which database this is, how far its audit has come, whether an operator resumed this very database, whether it is
-- held, and whether there is unfinished work.
SELECT found.*, (SELECT greatest((SELECT max(id) FROM audit), id) FROM audit_start) AS audit_id,
    EXISTS (SELECT FROM store_hold h WHERE h.resumed IS NOT NULL AND h.identity = found.identity) AS resumed,
    EXISTS (SELECT FROM store_hold WHERE resumed IS NULL) AS held,
    EXISTS (SELECT FROM maintenances WHERE status IN ('Planned', 'Running', 'Paused')) AS unfinished
FROM (SELECT system_identifier || '/' || 'cluster'::regclass::oid AS identity,
    ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint AS timeline FROM pg_control_system()) found;

-- The remaining queries coordinate several nodes.

-- name: lock_maintenances
-- Lock these maintenances, and those that wait for the budget of the fleet if requested, in the order of their ids.
SELECT id FROM maintenances WHERE id IN (
    SELECT unnest(%(ids)s::text[]) UNION SELECT id FROM maintenances WHERE waits_for_budget AND %(waiting_for_budget)s)
ORDER BY id FOR NO KEY UPDATE;

-- name: add_change
-- Announce a change, and add its audit entries. From here to the commit, one change at a time holds the lock: NOTIFY needs that
-- anyway, and it keeps the ids of the audit in order. A change whose time limit has passed by now, however long it waited, is
-- refused.
WITH locked AS MATERIALIZED (SELECT pg_advisory_xact_lock(%(lock)s)), announced AS (
    INSERT INTO changes (everything, scopes, machines)
    SELECT %(everything)s, %(scopes)s::jsonb, %(machines)s::jsonb FROM locked
    RETURNING pg_notify('forewarn', %(node)s),
        CASE WHEN clock_timestamp() > %(until)s::timestamptz THEN refuse_late() END)
INSERT INTO audit (at, who, action, origin, scope, maintenance_id, event_id, detail)
SELECT at, who, action, origin, scope, maintenance_id, event_id, detail FROM announced, ROWS FROM (json_to_recordset(%(audit)s)
    AS (at timestamptz, who text, action text, origin text, scope text, maintenance_id text, event_id text, detail text))
    WITH ORDINALITY ORDER BY ordinality;

-- name: changes_since
-- Return the changes of transactions from this one on.
SELECT number, xid::text::bigint AS xid, everything, scopes, machines FROM changes
WHERE xid >= %(xid)s::text::xid8 ORDER BY number;

-- name: where_we_are
-- Return the oldest open transaction (every change of an older one is visible), the database's identity and its time.
SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS horizon, forgotten::text::bigint AS forgotten, identity,
    timeline, clock_timestamp() AS now FROM cluster;

-- name: forget_changes
-- Delete old changes, but none that an open transaction may precede: nodes poll every second and have read the rest.
WITH old AS (DELETE FROM changes WHERE number IN
        (SELECT number FROM changes
         WHERE at < clock_timestamp() - %(kept_s)s * interval '1 second' AND xid < pg_snapshot_xmin(pg_current_snapshot())
         ORDER BY at LIMIT %(limit)s)
    RETURNING xid),
told AS (UPDATE cluster SET forgotten = (SELECT max(xid::text::bigint)::text::xid8 FROM old)
    WHERE (SELECT max(xid::text::bigint) FROM old) > forgotten::text::bigint)
SELECT count(*) AS forgotten FROM old;

-- name: server
-- Return the identity, timeline and schema version of this server, and whether the nodes agreed on it. Replicas have the same
-- oids; in a restored dump, even on the same server, this table has another oid.
SELECT found.*, cluster.identity = found.identity AND cluster.timeline = found.timeline AS same,
    (SELECT max(version) FROM schema_version) AS schema
FROM cluster, (SELECT system_identifier || '/' || 'cluster'::regclass::oid AS identity,
    ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint AS timeline FROM pg_control_system()) found;

-- name: lock_cluster
-- Lock the agreement on the server, and return it with the time.
SELECT identity, timeline, clock_timestamp() AS now FROM cluster FOR UPDATE;

-- name: lock_scopes
-- Lock all scopes in the order in which changes lock them.
SELECT count(*) FROM (SELECT FROM scopes ORDER BY name FOR NO KEY UPDATE) locked;

-- name: adopt_cluster
-- Agree on this server.
UPDATE cluster SET identity = (SELECT system_identifier || '/' || 'cluster'::regclass::oid FROM pg_control_system()),
    timeline = ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint,
    forgotten = '0';

-- name: forget_all_changes
-- Delete all changes.
DELETE FROM changes;

-- name: begin_epochs
-- Begin a new epoch in every scope, far enough ahead that it repeats no number of a lost commit.
UPDATE scopes SET epoch = epoch + 1000 * %(steps)s::bigint, incarnation = 1,
    version = version + 1000000 * %(steps)s::bigint;

-- name: skip_lost_numbers
-- Advance the sequences beyond all numbers of lost commits: streams rely on them.
SELECT setval(name, nextval(name) + 1000000 * %(steps)s::bigint) FROM (VALUES (pg_get_serial_sequence('audit', 'id')),
    (pg_get_serial_sequence('events', 'number')), (pg_get_serial_sequence('changes', 'number'))) sequences (name);

-- name: shorten_leases
-- Shorten leases granted before the clock moved back. Rows that another node has locked are skipped.
UPDATE leases SET until = clock_timestamp() + %(seconds)s * interval '1 second' WHERE name IN
    (SELECT name FROM leases WHERE until > clock_timestamp() + %(seconds)s * interval '1 second' FOR UPDATE SKIP LOCKED);

-- name: take_lease
-- Take a lease that is free or expired, or renew our own.
INSERT INTO leases VALUES (%(name)s, %(node)s, clock_timestamp() + %(seconds)s * interval '1 second')
ON CONFLICT (name) DO UPDATE SET node = excluded.node, until = excluded.until
WHERE leases.node = excluded.node OR leases.until < clock_timestamp();

-- name: drop_lease
-- Give up a lease.
DELETE FROM leases WHERE name = %(name)s AND node = %(node)s;

-- name: forget_leases
-- Delete leases that ended a day ago.
DELETE FROM leases WHERE until < clock_timestamp() - interval '1 day';

-- name: live_nodes
-- Return the names in the leases of a kind that have not ended, or ended at most `past_s` ago.
SELECT node FROM leases
WHERE name = %(kind)s || ' ' || node AND until >= clock_timestamp() - %(past_s)s * interval '1 second';

-- name: now
-- Return the database's time.
SELECT clock_timestamp() AS now;

-- name: standbys
-- Count the synchronous standbys, and those whose state this user may not see.
SELECT count(*) FILTER (WHERE sync_state IN ('sync', 'quorum')) AS synchronous,
    count(*) FILTER (WHERE sync_state IS NULL) AS hidden FROM pg_stat_replication;
