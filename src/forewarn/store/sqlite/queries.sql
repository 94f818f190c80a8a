-- The named queries of the SQLite store. Lists are passed as JSON arrays. The queries behind every decision join them,
-- because for IN (SELECT ...) SQLite first builds a table. INDEXED BY and unary + stop the planner from choosing, by its
-- statistics, to scan a whole table or all the history.

-- name: scopes_by_name
-- Return the named scopes.
SELECT s.* FROM json_each(:names) n CROSS JOIN scopes s ON s.name = n.value ORDER BY s.name;

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
SELECT * FROM machines WHERE scope IN (SELECT value FROM json_each(:names)) ORDER BY scope, name;

-- name: machines_by_key
-- Return the machines with these keys, a JSON array of [scope, name].
SELECT m.* FROM json_each(:keys) k
JOIN machines m ON m.scope = k.value ->> 0 AND m.name = k.value ->> 1 ORDER BY m.scope, m.name;

-- name: machines_on_hosts
-- Return the machines on these hosts.
SELECT * FROM machines INDEXED BY machines_by_host
WHERE host <> '' AND host IN (SELECT value FROM json_each(:hosts)) ORDER BY scope, name;

-- name: machines_by_identity
-- Return the machines with these identities, a JSON array of [interface, address].
SELECT m.* FROM json_each(:keys) k
JOIN machine_addresses a ON a.interface = k.value ->> 0 AND a.address = k.value ->> 1
JOIN machines m ON m.scope = a.scope AND m.name = a.name;

-- name: machines_by_instance_id
-- Return the machines with these instance ids.
SELECT * FROM machines INDEXED BY machines_by_instance_id
WHERE instance_id <> '' AND instance_id IN (SELECT value FROM json_each(:ids));

-- name: machines_all
-- Return every machine.
SELECT * FROM machines ORDER BY scope, name;

-- name: machines_known
-- Return a row for each identity of each machine, in the order of machines.
SELECT m.scope, m.name, m.update_domain, m.fault_domain, m.instance_id, a.interface, a.address
FROM machines m LEFT JOIN machine_addresses a ON a.scope = m.scope AND a.name = m.name
ORDER BY m.scope, m.name;

-- name: machines_labelled
-- Return what selectors read of every machine after this key, in the order of machines.
SELECT m.scope, m.name, m.update_domain, m.host, m.labels, h.labels
FROM machines m LEFT JOIN hosts h ON h.name = m.host
WHERE (m.scope, m.name) > (:scope, :name) ORDER BY m.scope, m.name;

-- name: machines_labelled_of_scopes
-- Return what selectors read of the machines of these scopes after this key, in the order of machines.
SELECT m.scope, m.name, m.update_domain, m.host, m.labels, h.labels
FROM machines m LEFT JOIN hosts h ON h.name = m.host
WHERE m.scope IN (SELECT value FROM json_each(:scopes)) AND (m.scope, m.name) > (:scope, :name)
ORDER BY m.scope, m.name;

-- name: labels_by_key
-- Return the labels of the machines with these keys, and those of their hosts.
SELECT m.scope, m.name, m.labels, h.labels AS host_labels FROM json_each(:keys) k
JOIN machines m ON m.scope = k.value ->> 0 AND m.name = k.value ->> 1 LEFT JOIN hosts h ON h.name = m.host;

-- name: addresses_by_key
-- Return the addresses of the machines with these keys.
SELECT a.scope, a.name, a.address FROM json_each(:keys) k
JOIN machine_addresses a ON a.scope = k.value ->> 0 AND a.name = k.value ->> 1;

-- name: addresses_all
-- Return every address of every machine.
SELECT scope, name, address FROM machine_addresses;

-- name: hosts_by_name
-- Return the rows of the named hosts.
SELECT h.* FROM json_each(:names) n CROSS JOIN hosts h ON h.name = n.value ORDER BY h.name;

-- name: hosts_all
-- Return every host that has a row.
SELECT * FROM hosts ORDER BY name;

-- name: scopes_of_maintenances
-- Return the scopes in which these maintenances have open events.
SELECT DISTINCT scope FROM events
WHERE maintenance_id IN (SELECT value FROM json_each(:ids)) AND +ended IS NULL;

-- name: events_current
-- Return the visible events of these maintenances, and those of the first wave that has planned events.
SELECT e.* FROM json_each(:ids) i CROSS JOIN events e INDEXED BY events_open_by_wave ON e.maintenance_id = i.value
WHERE e.ended IS NULL AND e.status IN ('Scheduled', 'Started')
UNION ALL
SELECT e.* FROM json_each(:ids) i CROSS JOIN events e INDEXED BY events_open_by_wave ON e.maintenance_id = i.value
WHERE e.ended IS NULL AND e.status = 'Planned' AND e.wave = (
    SELECT min(p.wave) FROM events p INDEXED BY events_open_by_wave
    WHERE p.maintenance_id = i.value AND p.status = 'Planned' AND p.ended IS NULL)
ORDER BY number;

-- name: events_unread
-- Return what is known of the events that events_current does not return.
SELECT i.value AS maintenance_id,
  (SELECT max(position) FROM events e WHERE e.maintenance_id = i.value) AS last_position,
  (SELECT max(ended) FROM events e INDEXED BY events_worked_on
   WHERE e.maintenance_id = i.value AND e.started IS NOT NULL AND e.ended IS NOT NULL) AS last_ended,
  (SELECT count(*) FROM events e INDEXED BY events_replaced
   WHERE e.maintenance_id = i.value AND e.replaced_by <> '') AS replaced
FROM json_each(:ids) i;

-- name: maintenances_in_scopes
-- Return the ids of the maintenances with open events in these scopes.
SELECT DISTINCT e.maintenance_id FROM json_each(:names) n
CROSS JOIN events e INDEXED BY events_open_by_scope ON e.scope = n.value WHERE e.ended IS NULL;

-- name: events_by_id
-- Return the events with these ids.
SELECT e.* FROM json_each(:ids) i CROSS JOIN events e ON e.id = i.value ORDER BY e.number;

-- name: events_open_in_scopes
-- Return the open events of the named scopes.
SELECT e.* FROM json_each(:names) n CROSS JOIN events e INDEXED BY events_open_by_scope ON e.scope = n.value
WHERE e.ended IS NULL ORDER BY e.number;

-- name: events_next_in_scopes
-- Return the events of the named scopes that may move when the events with these ids end and the machines with these keys move
-- to another host, as Focus.next_events says. A Scheduled
-- event without a wake-up, or that needs no approval, or that has one, comes before those that wait for their notice.
SELECT e.* FROM json_each(:names) n CROSS JOIN events e ON e.number = (
    SELECT c.number FROM events c INDEXED BY events_open_by_scope CROSS JOIN maintenances m ON m.id = c.maintenance_id
    WHERE c.scope = n.value AND c.ended IS NULL AND c.status = 'Scheduled'
      AND c.id NOT IN (SELECT value FROM json_each(:ids))
    ORDER BY m.wake_at IS NOT NULL AND c.needs_approval AND NOT c.born_approved
      AND NOT EXISTS (SELECT 1 FROM approvals a WHERE a.event_id = c.id), c.not_before, c.number LIMIT 1)
UNION ALL
SELECT e.* FROM json_each(:names) n CROSS JOIN scopes s ON s.name = n.value
CROSS JOIN events e INDEXED BY events_open_by_scope ON e.scope = s.name
WHERE e.ended IS NULL AND e.status = 'Planned' AND (e.born_approved OR s.max_unavailable <> '')
UNION ALL
SELECT e.* FROM json_each(:keys) k CROSS JOIN event_machines x ON x.scope = k.value ->> 0 AND x.machine = k.value ->> 1
CROSS JOIN events e ON e.number = x.event_number WHERE e.ended IS NULL AND e.status <> 'Started';

-- name: events_else_of_maintenances
-- Return the events of these maintenances that events_open_in_scopes does not: ended ones, and those in other scopes.
SELECT * FROM events
WHERE maintenance_id IN (SELECT value FROM json_each(:ids))
  AND (ended IS NOT NULL OR scope NOT IN (SELECT value FROM json_each(:names))) ORDER BY number;

-- name: maintenances_by_id
-- Return the maintenances with these ids and their targets.
SELECT m.*, t.targets, t.strategy FROM json_each(:ids) i CROSS JOIN maintenances m ON m.id = i.value
LEFT JOIN maintenance_targets t ON t.maintenance_id = m.id ORDER BY m.id;

-- name: maintenances_matching
-- Return those of these maintenances that contain a text. The targets are JSON, whose names are ASCII without a slash: there both
-- parts of the text are searched for, wherever they are.
SELECT m.*, t.targets, t.strategy FROM json_each(:ids) i CROSS JOIN maintenances m ON m.id = i.value
LEFT JOIN maintenance_targets t ON t.maintenance_id = m.id
WHERE m.id LIKE :pattern ESCAPE '\' OR m.type LIKE :pattern ESCAPE '\' OR m.description LIKE :pattern ESCAPE '\'
  OR m.created_by LIKE :pattern ESCAPE '\'
  OR (t.targets LIKE :scope_part ESCAPE '\' AND t.targets LIKE :name_part ESCAPE '\');

-- name: wave_progress
-- Count the events of these maintenances by wave.
SELECT e.maintenance_id, e.wave, sum(e.status = 'Completed') AS done,
  sum(e.status = 'Started' AND coalesce(o.state, '') NOT IN ('failed', 'in-doubt')) AS running,
  sum(coalesce(o.state = 'failed', 0)) AS failed, sum(coalesce(o.state = 'in-doubt', 0)) AS in_doubt,
  sum(e.status IN ('Planned', 'Scheduled')) AS "left", sum(e.status IN ('Cancelled', 'Abandoned')) AS undone,
  max(e.minimum_notice_s) AS notice_s, min(e.published) AS published, max(e.not_before) AS not_before,
  max(e.started) AS started, max(CASE WHEN e.status = 'Completed' THEN e.ended END) AS completed,
  sum(e.status = 'Abandoned' OR coalesce(o.attempt > 1 OR (e.status = 'Completed' AND e.reason <> o.reason), 0)) AS resolved,
  max(e.requested_not_before) AS requested_not_before
FROM json_each(:ids) i CROSS JOIN events e ON e.maintenance_id = i.value
LEFT JOIN orders o ON e.status IN ('Started', 'Completed') AND o.id = e.id
WHERE e.replaced_by = '' AND (:scopes IS NULL OR +e.scope IN (SELECT value FROM json_each(:scopes)))
GROUP BY e.maintenance_id, e.wave ORDER BY e.maintenance_id, e.wave;

-- name: approvals_of_events
-- Return the approvals of these events.
SELECT a.* FROM json_each(:ids) i CROSS JOIN approvals a ON a.event_id = i.value ORDER BY a.event_id, a.at, a.machine;

-- name: orders_of_events
-- Return the orders with these ids, which are those of their events unless they are orders of hosts.
SELECT o.* FROM json_each(:ids) i CROSS JOIN orders o ON o.id = i.value ORDER BY o.id;

-- name: orders_of_hosts
-- Return the orders of the hosts of these maintenances.
SELECT o.* FROM json_each(:ids) i CROSS JOIN orders o INDEXED BY orders_of_hosts ON o.maintenance_id = i.value
WHERE o.host <> '' ORDER BY o.maintenance_id, o.position;

-- name: orders_on_hosts
-- Return the orders of these hosts that are not over, in any maintenance.
SELECT * FROM orders INDEXED BY orders_of_hosts_by_state
WHERE state IN ('planned', 'open', 'running', 'in-doubt', 'failed') AND host <> '' AND host IN (SELECT value FROM json_each(:hosts))
ORDER BY id;

-- name: due
-- Return the maintenances whose wake_at has passed, earliest first.
SELECT id FROM maintenances WHERE wake_at <= :now ORDER BY wake_at, id LIMIT :limit;

-- name: due_latest_first
-- Return the maintenances whose wake_at has passed, latest first.
SELECT id FROM maintenances WHERE wake_at <= :now ORDER BY wake_at DESC, id DESC LIMIT :limit;

-- name: next_wakeup
-- Return the earliest wake_at.
SELECT wake_at FROM maintenances WHERE wake_at IS NOT NULL ORDER BY wake_at LIMIT 1;

-- name: orders_in_state
-- Return the oldest orders of events in a state.
SELECT * FROM orders INDEXED BY orders_by_state WHERE state = :state AND host = '' ORDER BY issued, id LIMIT :limit;

-- name: orders_of_hosts_in_state
-- Return the oldest orders of hosts in a state.
SELECT * FROM orders INDEXED BY orders_of_hosts_by_state WHERE state = :state AND host <> ''
ORDER BY issued, id LIMIT :limit;

-- Lists. A page is read in two steps: the keys of its rows, searched for each requested scope, status and type in an index
-- in the page's order; then the rows. `:since` is '' and `:scopes` is NULL if all are requested.

-- name: scopes_page
-- Return a page of all scopes.
SELECT * FROM scopes WHERE name > :after ORDER BY name LIMIT :limit;

-- name: machines_page
-- Return a page of all machines.
SELECT * FROM machines WHERE (scope, name) > (:scope, :name) ORDER BY scope, name LIMIT :limit;

-- name: machines_page_of_scope
-- Return a page of the machines of one scope.
SELECT * FROM machines WHERE scope = :scope AND name > :name ORDER BY name LIMIT :limit;

-- name: machines_page_of_host
-- Return a page of the machines on one host.
SELECT * FROM machines INDEXED BY machines_by_host
WHERE host <> '' AND host = :host AND (scope, name) > (:scope, :name)
  AND (:scopes IS NULL OR scope IN (SELECT value FROM json_each(:scopes)))
ORDER BY scope, name LIMIT :limit;

-- name: scopes_matching
-- Return a page of the scopes whose name is like a pattern. Reads scopes by the primary key until the page is full.
SELECT * FROM scopes
WHERE name > :after AND name LIKE :pattern ESCAPE '\'
  AND (:scopes IS NULL OR +name IN (SELECT value FROM json_each(:scopes)))
ORDER BY name LIMIT :limit;

-- name: machines_matching
-- Return a page of the machines whose name, host, instance id or address is like a pattern. Reads machines by the primary key
-- until the page is full. `:address` is the pattern if the text may be a part of an address, else NULL.
SELECT * FROM machines m
WHERE (scope, name) > (:scope, :name) AND :host IN ('', host)
  AND (:scopes IS NULL OR +scope IN (SELECT value FROM json_each(:scopes)))
  AND (name LIKE :pattern ESCAPE '\' OR host LIKE :pattern ESCAPE '\'
       OR +scope IN (SELECT s.name FROM scopes s WHERE s.name >= :scope AND s.name LIKE :pattern ESCAPE '\')
       OR (instance_id <> '' AND instance_id LIKE :pattern ESCAPE '\')
       OR (:address IS NOT NULL AND EXISTS (SELECT 1 FROM machine_addresses a WHERE a.scope = m.scope AND a.name = m.name
                                            AND a.address LIKE :address ESCAPE '\')))
ORDER BY scope, name LIMIT :limit;

-- name: machines_matching_key
-- Return a page of the machines whose scope and name are like two patterns: first the scopes, then the machines in them.
SELECT * FROM machines
WHERE scope IN (
    SELECT s.name FROM scopes s WHERE s.name >= :scope AND s.name LIKE :scope_pattern ESCAPE '\'
      AND (:scopes IS NULL OR +s.name IN (SELECT value FROM json_each(:scopes))))
  AND (+scope > :scope OR +name > :name) AND +name LIKE :name_pattern ESCAPE '\' AND :host IN ('', host)
ORDER BY scope, name LIMIT :limit;

-- name: machines_matching_instance_id
-- Return a page of the machines whose instance id is like a pattern. Reads the index of instance ids.
SELECT * FROM machines INDEXED BY machines_by_instance_id
WHERE instance_id <> '' AND instance_id LIKE :pattern ESCAPE '\' AND (scope, name) > (:scope, :name) AND :host IN ('', host)
  AND (:scopes IS NULL OR +scope IN (SELECT value FROM json_each(:scopes)))
ORDER BY scope, name LIMIT :limit;

-- name: hosts_page
-- Return a page of the hosts whose name is like a pattern, and the number of machines on each. Reads the index of hosts until the
-- page is full.
SELECT host AS name, count(*) AS machines FROM machines INDEXED BY machines_by_host
WHERE host <> '' AND host > :after AND host LIKE :pattern ESCAPE '\'
  AND (:scopes IS NULL OR +scope IN (SELECT value FROM json_each(:scopes)))
GROUP BY host ORDER BY host LIMIT :limit;

-- name: host_rows_page
-- Return a page of the hosts that are listed or cordoned and whose name is like a pattern.
SELECT * FROM hosts
WHERE name > :after AND name LIKE :pattern ESCAPE '\' AND (listed OR cordoned IS NOT NULL) ORDER BY name LIMIT :limit;

-- name: maintenance_keys
-- Return the newest (created, id) of maintenances with a status.
SELECT created AS at, id FROM maintenances INDEXED BY maintenances_by_status
WHERE status = :kind AND (created, id) < (:at, :id) ORDER BY created DESC, id DESC LIMIT :limit;

-- name: maintenance_keys_of_scope
-- Return the newest (created, id) of maintenances with a status and an event in a scope.
SELECT created AS at, maintenance_id AS id FROM maintenance_scopes
WHERE scope = :scope AND status = :kind AND (created, maintenance_id) < (:at, :id)
ORDER BY created DESC, maintenance_id DESC LIMIT :limit;

-- name: host_maintenance_keys
-- Return the newest (created, id) of maintenances with a status that work on hosts.
SELECT created AS at, id FROM maintenances INDEXED BY maintenances_on_hosts
WHERE host_mode IS NOT NULL AND status = :kind AND (created, id) < (:at, :id) ORDER BY created DESC, id DESC LIMIT :limit;

-- name: host_maintenance_keys_of_scope
-- Return the newest (created, id) of maintenances with a status that work on hosts and have an event in a scope.
SELECT m.created AS at, m.id FROM maintenances m INDEXED BY maintenances_on_hosts
WHERE m.host_mode IS NOT NULL AND m.status = :kind AND (m.created, m.id) < (:at, :id)
  AND EXISTS (SELECT 1 FROM maintenance_scopes s WHERE s.maintenance_id = m.id AND s.scope = :scope)
ORDER BY m.created DESC, m.id DESC LIMIT :limit;

-- name: drill_keys
-- Return the newest (created, id) of drills.
SELECT created AS at, id FROM maintenances INDEXED BY maintenances_drills
WHERE drill_hold_s > 0 AND (created, id) < (:at, :id) ORDER BY created DESC, id DESC LIMIT :limit;

-- name: drill_keys_of_scope
-- Return the newest (created, id) of drills with an event in a scope.
SELECT m.created AS at, m.id FROM maintenances m INDEXED BY maintenances_drills
WHERE m.drill_hold_s > 0 AND (m.created, m.id) < (:at, :id)
  AND EXISTS (SELECT 1 FROM maintenance_scopes s WHERE s.maintenance_id = m.id AND s.scope = :scope)
ORDER BY m.created DESC, m.id DESC LIMIT :limit;

-- name: order_keys
-- Return the newest (issued, id) of orders in a state; `:abandoned` says whether to return those of abandoned events too.
SELECT issued AS at, id FROM orders INDEXED BY orders_by_state
WHERE state = :kind AND (issued, id) < (:at, :id)
  AND (:abandoned OR NOT EXISTS (SELECT 1 FROM events e WHERE e.id = orders.id AND e.status = 'Abandoned'))
ORDER BY issued DESC, id DESC LIMIT :limit;

-- name: order_keys_of_scope
-- Return the newest (issued, id) of orders in a state, of events in a scope.
SELECT issued AS at, id FROM orders INDEXED BY orders_by_scope
WHERE scope = :scope AND state = :kind AND (issued, id) < (:at, :id)
  AND (:abandoned OR NOT EXISTS (SELECT 1 FROM events e WHERE e.id = orders.id AND e.status = 'Abandoned'))
ORDER BY issued DESC, id DESC LIMIT :limit;

-- name: events_by_number
-- Return the events with these numbers, newest first.
SELECT e.* FROM json_each(:numbers) n CROSS JOIN events e ON e.number = n.value ORDER BY e.number DESC;

-- name: events_matching
-- Return, of these numbers, those of events that contain a text, newest first: in one id, the type, the description or the
-- scope/name of one machine, whose parts have patterns of their own.
SELECT e.number FROM json_each(:numbers) n CROSS JOIN events e ON e.number = n.value
WHERE e.id LIKE :pattern ESCAPE '\' OR e.maintenance_id LIKE :pattern ESCAPE '\' OR e.type LIKE :pattern ESCAPE '\'
  OR e.description LIKE :pattern ESCAPE '\' OR e.scope LIKE :pattern ESCAPE '\'
  OR (e.scope LIKE :scope_pattern ESCAPE '\' AND EXISTS (
    SELECT 1 FROM event_machines x WHERE x.event_number = e.number AND x.machine LIKE :name_pattern ESCAPE '\'))
ORDER BY e.number DESC;

-- name: event_numbers_open_matching
-- Return the numbers of the newest open events that contain a text, as events_matching does. Reads the index of open events,
-- which are few, until the page is full.
SELECT e.number FROM events e INDEXED BY events_open
WHERE e.ended IS NULL AND e.number < :before AND (:scopes IS NULL OR +e.scope IN (SELECT value FROM json_each(:scopes)))
  AND e.status IN (SELECT value FROM json_each(:statuses)) AND e.type IN (SELECT value FROM json_each(:types))
  AND (e.id LIKE :pattern ESCAPE '\' OR e.maintenance_id LIKE :pattern ESCAPE '\' OR e.type LIKE :pattern ESCAPE '\'
    OR e.description LIKE :pattern ESCAPE '\' OR e.scope LIKE :pattern ESCAPE '\'
    OR (e.scope LIKE :scope_pattern ESCAPE '\' AND EXISTS (
      SELECT 1 FROM event_machines x WHERE x.event_number = e.number AND x.machine LIKE :name_pattern ESCAPE '\')))
ORDER BY e.number DESC LIMIT :limit;

-- name: event_numbers
-- Return the numbers of the newest events.
SELECT number FROM events
WHERE number < :before AND (:since = '' OR ended IS NULL OR ended >= :since)
ORDER BY number DESC LIMIT :limit;

-- name: event_numbers_of_kind
-- Return the numbers of the newest events with an ended status and a type.
SELECT number FROM events INDEXED BY events_by_kind
WHERE ended IS NOT NULL AND status = :status AND type = :type AND number < :before
  AND (:since = '' OR ended >= :since)
ORDER BY number DESC LIMIT :limit;

-- name: event_numbers_of_scope
-- Return the numbers of the newest events of a scope.
SELECT number FROM events INDEXED BY events_by_scope
WHERE scope = :scope AND number < :before AND (:since = '' OR ended IS NULL OR ended >= :since)
ORDER BY number DESC LIMIT :limit;

-- name: event_numbers_of_scope_and_kind
-- Return the numbers of the newest events of a scope with an ended status and a type.
SELECT number FROM events INDEXED BY events_by_scope_and_kind
WHERE ended IS NOT NULL AND scope = :scope AND status = :status AND type = :type AND number < :before
  AND (:since = '' OR ended >= :since)
ORDER BY number DESC LIMIT :limit;

-- name: event_numbers_open
-- Return the numbers of the newest open events.
SELECT number FROM events INDEXED BY events_open
WHERE ended IS NULL AND number < :before
  AND status IN (SELECT value FROM json_each(:statuses)) AND type IN (SELECT value FROM json_each(:types))
ORDER BY number DESC LIMIT :limit;

-- name: event_numbers_open_of_scope
-- Return the numbers of the newest open events of a scope.
SELECT number FROM events INDEXED BY events_open_by_scope
WHERE ended IS NULL AND scope = :scope AND number < :before
  AND status IN (SELECT value FROM json_each(:statuses)) AND type IN (SELECT value FROM json_each(:types))
ORDER BY number DESC LIMIT :limit;

-- name: count_open
-- Count the open events by status, and the Started events and the hosts with a failed order or with an order in doubt. Planned
-- events, which may be many, are those that are open and not visible.
SELECT (SELECT count(*) FROM events INDEXED BY events_open WHERE ended IS NULL) - count(*) AS planned,
  coalesce(sum(e.status = 'Scheduled'), 0) AS scheduled, coalesce(sum(e.status = 'Started'), 0) AS started,
  coalesce(sum(o.state = 'failed'), 0)
    + (SELECT count(*) FROM orders INDEXED BY orders_of_hosts_by_state WHERE host <> '' AND state = 'failed') AS failed,
  coalesce(sum(o.state = 'in-doubt'), 0)
    + (SELECT count(*) FROM orders INDEXED BY orders_of_hosts_by_state WHERE host <> '' AND state = 'in-doubt') AS in_doubt
FROM events e INDEXED BY events_visible LEFT JOIN orders o ON e.status = 'Started' AND o.id = e.id
WHERE e.status IN ('Scheduled', 'Started');

-- name: count_open_of_scopes
-- Count as count_open does, in the named scopes.
SELECT coalesce(sum(e.status = 'Planned'), 0) AS planned, coalesce(sum(e.status = 'Scheduled'), 0) AS scheduled,
  coalesce(sum(e.status = 'Started'), 0) AS started, coalesce(sum(e.status = 'Started' AND o.state = 'failed'), 0) AS failed,
  coalesce(sum(e.status = 'Started' AND o.state = 'in-doubt'), 0) AS in_doubt
FROM json_each(:scopes) n CROSS JOIN events e INDEXED BY events_open_by_scope ON e.scope = n.value
LEFT JOIN orders o ON o.id = e.id
WHERE e.ended IS NULL;

-- name: open_waves
-- Count the open events that match by maintenance, wave and status; each row also has the totals by status. Reads every open
-- event: they are few. Finds a text as events_matching does.
WITH matching AS MATERIALIZED (
  SELECT e.maintenance_id, e.wave, e.status, e.number
  FROM events e INDEXED BY events_open
  WHERE e.ended IS NULL AND (:scopes IS NULL OR +e.scope IN (SELECT value FROM json_each(:scopes)))
    AND e.status IN (SELECT value FROM json_each(:statuses)) AND e.type IN (SELECT value FROM json_each(:types))
    AND (:host = '' OR EXISTS (
      SELECT 1 FROM event_machines x CROSS JOIN machines h ON h.scope = x.scope AND h.name = x.machine
      WHERE x.event_number = e.number AND h.host = :host))
    AND (:pattern = '%%'
      OR e.id LIKE :pattern ESCAPE '\' OR e.maintenance_id LIKE :pattern ESCAPE '\' OR e.type LIKE :pattern ESCAPE '\'
      OR e.description LIKE :pattern ESCAPE '\' OR e.scope LIKE :pattern ESCAPE '\'
      OR (e.scope LIKE :scope_pattern ESCAPE '\' AND EXISTS (
        SELECT 1 FROM event_machines x WHERE x.event_number = e.number AND x.machine LIKE :name_pattern ESCAPE '\')))
), waves AS (
  SELECT maintenance_id, wave, status, count(*) AS events, max(number) AS newest
  FROM matching GROUP BY maintenance_id, wave, status ORDER BY newest DESC LIMIT :limit
), totals AS (
  SELECT count(*) FILTER (WHERE status = 'Planned') AS planned, count(*) FILTER (WHERE status = 'Scheduled') AS scheduled,
    count(*) FILTER (WHERE status = 'Started') AS started
  FROM matching
)
SELECT w.maintenance_id, w.wave, w.status, w.events, m.type, m.description, m.created, t.planned, t.scheduled, t.started
FROM waves w CROSS JOIN totals t CROSS JOIN maintenances m ON m.id = w.maintenance_id
ORDER BY w.newest DESC;

-- name: open_waves_all
-- Count all open events as open_waves does, off an index in the order of the groups.
WITH grouped AS MATERIALIZED (
  SELECT maintenance_id, wave, status, count(*) AS events, max(number) AS newest
  FROM events e INDEXED BY events_open_by_wave WHERE e.ended IS NULL GROUP BY maintenance_id, status, wave
), waves AS (
  SELECT * FROM grouped ORDER BY newest DESC LIMIT :limit
), totals AS (
  SELECT coalesce(sum(events) FILTER (WHERE status = 'Planned'), 0) AS planned,
    coalesce(sum(events) FILTER (WHERE status = 'Scheduled'), 0) AS scheduled,
    coalesce(sum(events) FILTER (WHERE status = 'Started'), 0) AS started
  FROM grouped
)
SELECT w.maintenance_id, w.wave, w.status, w.events, m.type, m.description, m.created, t.planned, t.scheduled, t.started
FROM waves w CROSS JOIN totals t CROSS JOIN maintenances m ON m.id = w.maintenance_id
ORDER BY w.newest DESC;

-- name: backlog
-- Return the earliest start and wake-up, and count the open and running orders.
SELECT (SELECT min(not_before) FROM events INDEXED BY events_open WHERE ended IS NULL AND status = 'Scheduled') AS earliest_start,
    (SELECT min(wake_at) FROM maintenances WHERE wake_at IS NOT NULL) AS earliest_wake,
    (SELECT count(*) FROM orders WHERE state = 'open') AS open, (SELECT count(*) FROM orders WHERE state = 'running') AS running;

-- name: count_scopes
-- Count all scopes.
SELECT count(*) AS scopes FROM scopes;

-- name: count_scopes_of
-- Count the named scopes that exist.
SELECT count(*) AS scopes FROM scopes WHERE name IN (SELECT value FROM json_each(:scopes));

-- name: count_machines
-- Count all machines.
SELECT count(*) AS machines FROM machines;

-- name: count_machines_of
-- Count the machines of the named scopes.
SELECT count(*) AS machines FROM machines WHERE scope IN (SELECT value FROM json_each(:scopes));

-- name: machine_counts
-- Count the machines of each named scope.
SELECT scope, count(*) AS machines FROM machines WHERE scope IN (SELECT value FROM json_each(:scopes)) GROUP BY scope;

-- name: event_numbers_of_machine
-- Return the numbers of the newest events of a machine.
SELECT e.number FROM event_machines m CROSS JOIN events e ON e.number = m.event_number
WHERE m.scope = :scope AND m.machine = :machine AND m.event_number < :before
  AND :maintenance_id IN ('', e.maintenance_id) AND (:since = '' OR e.ended IS NULL OR e.ended >= :since)
  AND e.status IN (SELECT value FROM json_each(:statuses)) AND e.type IN (SELECT value FROM json_each(:types))
ORDER BY m.event_number DESC LIMIT :limit;

-- name: event_numbers_of_host
-- Return the numbers of the newest events of the machines that are on a host now.
SELECT DISTINCT e.number FROM machines h INDEXED BY machines_by_host
CROSS JOIN event_machines m ON m.scope = h.scope AND m.machine = h.name CROSS JOIN events e ON e.number = m.event_number
WHERE h.host <> '' AND h.host = :host AND m.event_number < :before
  AND :maintenance_id IN ('', e.maintenance_id) AND (:since = '' OR e.ended IS NULL OR e.ended >= :since)
  AND (:scopes IS NULL OR +e.scope IN (SELECT value FROM json_each(:scopes)))
  AND e.status IN (SELECT value FROM json_each(:statuses)) AND e.type IN (SELECT value FROM json_each(:types))
ORDER BY e.number DESC LIMIT :limit;

-- name: event_numbers_of_maintenance
-- Return the numbers of the newest events of a maintenance.
SELECT number FROM events
WHERE maintenance_id = :maintenance_id AND +number < :before
  AND (:since = '' OR ended IS NULL OR ended >= :since)
  AND (:scopes IS NULL OR +scope IN (SELECT value FROM json_each(:scopes)))
  AND +status IN (SELECT value FROM json_each(:statuses)) AND +type IN (SELECT value FROM json_each(:types))
ORDER BY number DESC LIMIT :limit;

-- name: more_ended_since
-- Return a row if more than `most` events ended since then.
SELECT ended FROM events INDEXED BY events_by_end WHERE ended IS NOT NULL AND ended >= :since LIMIT 1 OFFSET :most;

-- name: event_numbers_ended_since
-- Return the numbers of all events that ended since then.
SELECT number FROM events INDEXED BY events_by_end
WHERE ended IS NOT NULL AND ended >= :since AND +number < :before
  AND (:scopes IS NULL OR +scope IN (SELECT value FROM json_each(:scopes)))
  AND +status IN (SELECT value FROM json_each(:statuses)) AND +type IN (SELECT value FROM json_each(:types));

-- name: audit
-- Return a page of the whole audit, newest first.
SELECT * FROM audit WHERE id < :before ORDER BY id DESC LIMIT :limit;

-- name: audit_by_id
-- Return the audit entries with these ids.
SELECT a.* FROM json_each(:ids) i CROSS JOIN audit a ON a.id = i.value;

-- name: audit_ids_of_scope
-- Return the ids of a scope's newest audit entries.
SELECT id AS number FROM audit INDEXED BY audit_by_scope
WHERE scope <> '' AND scope = :scope AND id < :before ORDER BY id DESC LIMIT :limit;

-- name: audit_of_maintenance
-- Return a page of a maintenance's audit entries, newest first.
SELECT * FROM audit INDEXED BY audit_by_maintenance
WHERE maintenance_id <> '' AND maintenance_id = :maintenance_id AND id < :before
  AND (:scopes IS NULL OR scope IN (SELECT value FROM json_each(:scopes)))
ORDER BY id DESC LIMIT :limit;

-- name: audit_of_event
-- Return a page of an event's audit entries, newest first.
SELECT * FROM audit INDEXED BY audit_by_event
WHERE event_id <> '' AND event_id = :event_id AND id < :before AND :maintenance_id IN ('', maintenance_id)
  AND (:scopes IS NULL OR scope IN (SELECT value FROM json_each(:scopes)))
ORDER BY id DESC LIMIT :limit;

-- name: audit_stream
-- Return the next entries of the whole audit, oldest first.
SELECT * FROM audit WHERE id > :after ORDER BY id LIMIT :limit;

-- name: audit_stream_ids_of_scope
-- Return the ids of a scope's next audit entries, oldest first.
SELECT id AS number FROM audit INDEXED BY audit_by_scope
WHERE scope <> '' AND scope = :scope AND id > :after ORDER BY id LIMIT :limit;

-- name: audit_stream_of_maintenance
-- Return a maintenance's next audit entries, oldest first.
SELECT * FROM audit INDEXED BY audit_by_maintenance
WHERE maintenance_id <> '' AND maintenance_id = :maintenance_id AND id > :after
  AND (:scopes IS NULL OR scope IN (SELECT value FROM json_each(:scopes)))
ORDER BY id LIMIT :limit;

-- name: audit_stream_of_event
-- Return an event's next audit entries, oldest first.
SELECT * FROM audit INDEXED BY audit_by_event
WHERE event_id <> '' AND event_id = :event_id AND id > :after AND :maintenance_id IN ('', maintenance_id)
  AND (:scopes IS NULL OR scope IN (SELECT value FROM json_each(:scopes)))
ORDER BY id LIMIT :limit;

-- name: tokens_all
-- Return every token, newest first.
SELECT * FROM tokens INDEXED BY tokens_by_age ORDER BY created DESC, id DESC;

-- name: token_uses
-- Return when each token was last used.
SELECT token_id, at FROM token_uses;

-- name: session
-- Return a login by the digest of its session id.
SELECT * FROM sessions WHERE digest = :digest;

-- name: receipt
-- Return the receipt of a request.
SELECT * FROM receipts WHERE token_id = :token_id AND key = :key;

-- name: versions
-- Return the versions of the named scopes.
SELECT s.name, s.version FROM json_each(:names) n CROSS JOIN scopes s ON s.name = n.value;

-- name: update_scope
-- Update a scope that has this version. If it has another, this changes no row, and the store raises Conflict.
UPDATE scopes SET kind = :kind, approval = :approval, approve_user_events = :approve_user_events,
    max_user_operations = :max_user_operations, terminate_notice_s = :terminate_notice_s,
    minimum_notice_s = :minimum_notice_s, enabled = :enabled, epoch = :epoch, incarnation = :incarnation,
    changed = :changed, windows = :windows, max_unavailable = :max_unavailable,
    approval_opens_window = :approval_opens_window, version = :version + 1
WHERE name = :name AND version = :version;

-- name: put_scope
-- Add or replace a scope.
INSERT INTO scopes VALUES (:name, :kind, :approval, :approve_user_events, :max_user_operations, :terminate_notice_s,
    :minimum_notice_s, :enabled, :epoch, :incarnation, :version + 1, :changed, :windows, :max_unavailable,
    :approval_opens_window)
ON CONFLICT (name) DO UPDATE SET kind = excluded.kind, approval = excluded.approval,
    approve_user_events = excluded.approve_user_events, max_user_operations = excluded.max_user_operations,
    terminate_notice_s = excluded.terminate_notice_s, minimum_notice_s = excluded.minimum_notice_s,
    enabled = excluded.enabled, epoch = excluded.epoch, incarnation = excluded.incarnation,
    version = excluded.version, changed = excluded.changed, windows = excluded.windows,
    max_unavailable = excluded.max_unavailable, approval_opens_window = excluded.approval_opens_window;

-- name: add_scope
-- Add a scope. If it exists, this changes no row, and the store raises Conflict.
INSERT INTO scopes VALUES (:name, :kind, :approval, :approve_user_events, :max_user_operations, :terminate_notice_s,
    :minimum_notice_s, :enabled, :epoch, :incarnation, :version + 1, :changed, :windows, :max_unavailable,
    :approval_opens_window)
ON CONFLICT DO NOTHING;

-- name: remove_scope
-- Delete a scope.
DELETE FROM scopes WHERE name = :name;

-- name: put_machine
-- Add or replace a machine.
INSERT INTO machines VALUES (:scope, :name, :update_domain, :fault_domain, :host, :interface, :instance_id, :labels)
ON CONFLICT (scope, name) DO UPDATE SET update_domain = excluded.update_domain, fault_domain = excluded.fault_domain,
    host = excluded.host, interface = excluded.interface, instance_id = excluded.instance_id,
    labels = excluded.labels;

-- name: clear_instance_id
-- Clear the instance id of a machine. Machines may swap identities in one change: clear all old ones before adding new ones.
UPDATE machines SET instance_id = '' WHERE scope = :scope AND name = :name AND instance_id <> '';

-- name: clear_addresses
-- Delete the addresses of a machine.
DELETE FROM machine_addresses WHERE scope = :scope AND name = :name;

-- name: put_address
-- Add an address of a machine.
INSERT INTO machine_addresses VALUES (:interface, :address, :scope, :name);

-- name: remove_machine
-- Delete a machine.
DELETE FROM machines WHERE scope = :scope AND name = :name;

-- name: add_maintenance
-- Add a maintenance. If it exists, this changes no row, and the store raises Conflict.
INSERT INTO maintenances VALUES (:id, :type, :source, :created, :created_by, :not_before, :earliest, :duration_s,
    :description, :emergency, :on_failure, :paused, :cancelled, :status, :wake_at, :version + 1, :ended, :told, :host_mode,
    :return_machines, :to_host, :not_after, :drill_hold_s, :continued_after,
    :waits_for_budget)
ON CONFLICT (id) DO NOTHING;

-- name: add_targets
-- Add the targets of a new maintenance.
INSERT INTO maintenance_targets VALUES (:maintenance_id, :targets, :strategy);

-- name: update_maintenance
-- Update a maintenance. If its version changed, this changes no row, and the store raises Conflict.
UPDATE maintenances SET paused = :paused, cancelled = :cancelled, status = :status, wake_at = :wake_at,
    version = :version + 1, ended = :ended, told = :told,
    continued_after = :continued_after, waits_for_budget = :waits_for_budget
WHERE id = :id AND version = :version;

-- name: wake_maintenances
-- Let the ticker work on these maintenances now, and on those that wait for the budget of the fleet if requested, unless they have
-- ended.
UPDATE maintenances SET wake_at = :at, version = version + 1
WHERE ended IS NULL AND id IN (SELECT value FROM json_each(:ids)
    UNION ALL SELECT id FROM maintenances WHERE waits_for_budget = 1 AND :waiting_for_budget);

-- name: put_event
-- Add or update an event. If its id belongs to another maintenance, this changes no row, and the store raises InvariantBroken.
INSERT INTO events (id, maintenance_id, wave, position, scope, update_domain, type, source, resources, description,
    duration_s, emergency, status, born_approved, needs_approval, approval, sequence, published, not_before,
    minimum_notice_s, started, ended, reason, host, to_host, group_name, replaces, reschedules, requested_not_before,
    replaced_by)
VALUES (:id, :maintenance_id, :wave, :position, :scope, :update_domain, :type, :source, :resources, :description,
    :duration_s, :emergency, :status, :born_approved, :needs_approval, :approval, :sequence, :published, :not_before,
    :minimum_notice_s, :started, :ended, :reason, :host, :to_host, :group_name, :replaces, :reschedules,
    :requested_not_before, :replaced_by)
ON CONFLICT (id) DO UPDATE SET wave = excluded.wave, status = excluded.status, needs_approval = excluded.needs_approval,
    approval = excluded.approval, sequence = excluded.sequence, published = excluded.published,
    not_before = excluded.not_before, minimum_notice_s = excluded.minimum_notice_s, started = excluded.started,
    ended = excluded.ended, reason = excluded.reason, replaced_by = excluded.replaced_by
WHERE events.maintenance_id = excluded.maintenance_id;

-- name: add_approval
-- Add an approval. If it exists, this changes no row, and the store raises Conflict.
INSERT INTO approvals VALUES (:event_id, :machine, :who, :at, :origin) ON CONFLICT DO NOTHING;

-- name: put_order
-- Add or update an order; it is listed under its event's scope, the order of a host under none.
INSERT INTO orders (id, issued, deadline, state, attempt, node, taken, ended, reason, output, host, maintenance_id, position,
    phase, reschedules, requested_not_before, scope)
VALUES (:id, :issued, :deadline, :state, :attempt, :node, :taken, :ended, :reason, :output, :host, :maintenance_id, :position,
    :phase, :reschedules, :requested_not_before, CASE WHEN :host = '' THEN (SELECT scope FROM events WHERE events.id = :id) ELSE '' END)
ON CONFLICT (id) DO UPDATE SET issued = excluded.issued, deadline = excluded.deadline, state = excluded.state,
    attempt = excluded.attempt, node = excluded.node, taken = excluded.taken, ended = excluded.ended,
    reason = excluded.reason, output = excluded.output, phase = excluded.phase, position = excluded.position,
    reschedules = excluded.reschedules, requested_not_before = excluded.requested_not_before;

-- name: add_audit
-- Add an audit entry.
INSERT INTO audit (at, who, action, origin, scope, maintenance_id, event_id, detail, hash)
VALUES (:at, :who, :action, :origin, :scope, :maintenance_id, :event_id, :detail, :hash);

-- name: audit_start
-- Return where the chain of the audit begins.
SELECT id, hash FROM audit_start WHERE one = 1;

-- name: newest_audit
-- Return the newest audit entry, the head of the chain.
SELECT id, hash FROM audit ORDER BY id DESC LIMIT 1;

-- name: oldest_audit
-- Return the oldest audit entries.
SELECT id, at, hash FROM audit ORDER BY id LIMIT :limit;

-- name: move_audit_start
-- Record the newest entry that is pruned as the beginning of the chain.
UPDATE audit_start SET id = :id, hash = :hash WHERE one = 1 AND id < :id;

-- name: add_token
-- Add a token. If its id or digest exists, this changes no row, and the store raises Conflict.
INSERT INTO tokens VALUES (:id, :name, :role, :scopes, :digest, :created, :created_by, :expires)
ON CONFLICT DO NOTHING;

-- name: remove_token
-- Delete a token.
DELETE FROM tokens WHERE id = :id;

-- name: record_token_use
-- Record the last use of a token. A token that no longer exists is not recorded.
INSERT INTO token_uses
SELECT id, :at FROM tokens WHERE id = :token_id
ON CONFLICT (token_id) DO UPDATE SET at = max(token_uses.at, excluded.at);

-- name: add_host
-- Add a host. If it has a row, this changes no row, and the store raises Conflict.
INSERT INTO hosts VALUES (:name, :labels, :fault_domain, :connection, :listed, :cordoned, :cordoned_by, 1)
ON CONFLICT DO NOTHING;

-- name: update_host
-- Save a host that has not changed since it was read.
UPDATE hosts SET labels = :labels, fault_domain = :fault_domain, connection = :connection, listed = :listed,
    cordoned = :cordoned, cordoned_by = :cordoned_by, version = version + 1
WHERE name = :name AND version = :version;

-- name: remove_host
-- Delete the row of a host that has not changed since it was read.
DELETE FROM hosts WHERE name = :name AND version = :version;

-- name: hooks_all
-- Return every hook, oldest first.
SELECT * FROM hooks INDEXED BY hooks_by_age ORDER BY created, id;

-- name: add_hook
-- Add a hook. If its id exists, this changes no row, and the store raises Conflict.
INSERT INTO hooks VALUES (:id, :url, :scope, :kinds, :shape, :secrets, :old_secrets_until, :created, :created_by,
    :cursor, :delivered, :failing_since, :failures, :error, :disabled, :gap_after, :gap_until, 1, :owner_token)
ON CONFLICT DO NOTHING;

-- name: update_hook
-- Save a hook that has not changed since it was read.
UPDATE hooks SET secrets = :secrets, old_secrets_until = :old_secrets_until, cursor = :cursor, delivered = :delivered,
    failing_since = :failing_since, failures = :failures, error = :error, disabled = :disabled,
    gap_after = :gap_after, gap_until = :gap_until, owner_token = :owner_token, version = version + 1
WHERE id = :id AND version = :version;

-- name: remove_hook
-- Delete a hook with its deliveries.
DELETE FROM hooks WHERE id = :id;

-- name: put_delivery
-- Record the last attempt to deliver an entry.
INSERT INTO hook_deliveries VALUES (:hook_id, :audit_id, :kind, :at, :attempts, :delivered, :status, :took_ms, :error)
ON CONFLICT (hook_id, audit_id) DO UPDATE
SET kind = excluded.kind, at = excluded.at, attempts = excluded.attempts, delivered = excluded.delivered,
    status = excluded.status, took_ms = excluded.took_ms, error = excluded.error;

-- name: limit_deliveries
-- Delete the deliveries of a hook except those that were attempted last.
DELETE FROM hook_deliveries WHERE hook_id = :hook_id AND audit_id IN
    (SELECT audit_id FROM hook_deliveries INDEXED BY hook_deliveries_by_time WHERE hook_id = :hook_id
     ORDER BY at DESC, audit_id DESC LIMIT -1 OFFSET :keep);

-- name: deliveries
-- Return a page of a hook's deliveries, newest entry first.
SELECT * FROM hook_deliveries WHERE hook_id = :hook_id AND audit_id < :before
ORDER BY audit_id DESC LIMIT :limit;

-- name: add_session
-- Add a login. If it exists, this changes no row, and the store raises Conflict.
INSERT INTO sessions VALUES (:digest, :token_id, :created, :expires) ON CONFLICT DO NOTHING;

-- name: limit_sessions
-- Delete the logins of a token except those that end last.
DELETE FROM sessions WHERE digest IN
    (SELECT digest FROM sessions INDEXED BY sessions_by_token WHERE token_id = :token_id
     ORDER BY expires DESC, digest DESC LIMIT -1 OFFSET :keep);

-- name: end_session
-- Delete a login.
DELETE FROM sessions WHERE digest = :digest;

-- name: end_sessions_of_token
-- Delete every login with a token.
DELETE FROM sessions WHERE token_id = :token_id;

-- name: forget_sessions
-- Delete logins that have ended.
DELETE FROM sessions WHERE digest IN
    (SELECT digest FROM sessions INDEXED BY sessions_by_end WHERE expires < :before ORDER BY expires LIMIT :limit);

-- name: add_receipt
-- Add a receipt. If it exists, this changes no row, and the store raises Conflict.
INSERT INTO receipts VALUES (:token_id, :key, :digest, :status, :body, :at) ON CONFLICT DO NOTHING;

-- name: old_maintenances
-- Return maintenances that ended before then, oldest first.
SELECT id FROM maintenances WHERE ended IS NOT NULL AND ended < :before ORDER BY ended LIMIT :limit;

-- name: forget_events
-- Delete some events of these maintenances.
DELETE FROM events WHERE number IN
    (SELECT number FROM events WHERE maintenance_id IN (SELECT value FROM json_each(:ids)) LIMIT :limit);

-- name: forget_maintenances
-- Delete these maintenances if they have no events left.
DELETE FROM maintenances WHERE id IN (SELECT value FROM json_each(:ids))
    AND NOT EXISTS (SELECT 1 FROM events WHERE maintenance_id = maintenances.id);

-- name: forget_audit
-- Delete the audit entries up to an id.
DELETE FROM audit WHERE id <= :id;

-- name: forget_receipts
-- Delete the oldest receipts.
DELETE FROM receipts WHERE (token_id, key) IN
    (SELECT token_id, key FROM receipts INDEXED BY receipts_by_age WHERE at < :before ORDER BY at LIMIT :limit);

-- name: record_last_seen
-- Record a machine's last request. A machine that no longer exists is not recorded.
INSERT INTO last_seen
SELECT scope, name, :at FROM machines WHERE scope = :scope AND name = :name
ON CONFLICT (scope, name) DO UPDATE SET at = max(last_seen.at, excluded.at);

-- name: last_seen_by_scope
-- Return the last request from each of the named scopes.
SELECT scope, max(at) AS at FROM last_seen WHERE scope IN (SELECT value FROM json_each(:names)) GROUP BY scope;

-- name: last_seen_by_key
-- Return the last requests of the machines with these keys.
SELECT s.* FROM json_each(:keys) k CROSS JOIN last_seen s ON s.scope = k.value ->> 0 AND s.name = k.value ->> 1;

-- name: record_first_seen
-- Record when a machine first saw an event, once. An event that no longer exists is not recorded.
INSERT INTO sightings SELECT id, :machine, :at FROM events WHERE id = :event_id ON CONFLICT DO NOTHING;

-- name: sightings_of_event
-- Return when each machine first saw an event.
SELECT machine, at FROM sightings WHERE event_id = :event_id ORDER BY machine;

-- name: machines_named
-- Return the machines with a name, by scope.
SELECT * FROM machines INDEXED BY machines_by_name WHERE name = :name ORDER BY scope LIMIT :limit;

-- name: event_ids_starting
-- Return event ids in a range, by the unique index of the ids.
SELECT id FROM events INDEXED BY sqlite_autoindex_events_1
WHERE id >= :prefix AND id < :after AND (:scopes IS NULL OR scope IN (SELECT value FROM json_each(:scopes)))
ORDER BY id LIMIT :limit;

-- name: order_ids_starting
-- Return order ids in a range, by the primary key.
SELECT id FROM orders
WHERE id >= :prefix AND id < :after AND (:scopes IS NULL OR scope IN (SELECT value FROM json_each(:scopes)))
ORDER BY id LIMIT :limit;

-- name: maintenance_ids_starting
-- Return maintenance ids in a range, by the primary key.
SELECT id FROM maintenances
WHERE id >= :prefix AND id < :after
  AND (:scopes IS NULL OR EXISTS (SELECT 1 FROM maintenance_scopes s INDEXED BY maintenance_scopes_by_maintenance
                                  WHERE s.maintenance_id = maintenances.id
                                    AND s.scope IN (SELECT value FROM json_each(:scopes))))
ORDER BY id LIMIT :limit;

-- name: rules_and_holds
-- Return one row: the rules of the fleet; the hold of the clock, if `trusted` is set; and the hold of the store, resumed or
-- not, if `held` is set.
SELECT windows, no_go_times, max_hosts_down, max_machines_down, version, reservations,
    trusted, noticed, jumped_s, node, confirmed, cause, detail, who, held, resumed
FROM fleet_rules f LEFT JOIN clock_hold c ON c.one = 1 LEFT JOIN store_hold s ON s.one = 1 WHERE f.one = 1;

-- name: machines_down
-- Count the machines in published and Started events.
SELECT count(DISTINCT m.scope || '/' || m.machine) AS machines
FROM events e INDEXED BY events_visible CROSS JOIN event_machines m ON m.event_number = e.number
WHERE e.status IN ('Scheduled', 'Started');

-- name: hosts_down
-- Return the hosts that maintenances work on, empty, or take down because they group machines by host.
SELECT e.maintenance_id, e.host FROM events e INDEXED BY events_visible WHERE e.status IN ('Scheduled', 'Started') AND e.host <> ''
UNION
SELECT e.maintenance_id, e.group_name FROM events e INDEXED BY events_visible
CROSS JOIN maintenance_targets t ON t.maintenance_id = e.maintenance_id
WHERE e.status IN ('Scheduled', 'Started') AND e.group_name <> '' AND json_extract(t.strategy, '$.group_by') = 'host'
UNION
SELECT maintenance_id, host FROM orders INDEXED BY orders_of_hosts_by_state
WHERE host <> '' AND state IN ('open', 'running', 'in-doubt', 'failed')
UNION
SELECT o.maintenance_id, o.host FROM orders o INDEXED BY orders_of_hosts_by_state
WHERE o.host <> '' AND o.state = 'planned' AND EXISTS (SELECT 1 FROM events e INDEXED BY events_of_hosts
    WHERE e.host <> '' AND e.maintenance_id = o.maintenance_id AND e.host = o.host AND e.status = 'Completed');

-- name: events_down
-- Return the oldest published and Started events.
SELECT id FROM events INDEXED BY events_visible WHERE status IN ('Scheduled', 'Started') ORDER BY number LIMIT :limit;

-- name: count_use
-- Record that something is up again, or is down that waits for no budget, if the fleet has a budget.
UPDATE fleet_rules SET reservations = reservations + 1 WHERE one = 1 AND (max_hosts_down > 0 OR max_machines_down > 0);

-- name: update_fleet_rules
-- Change the rules of the fleet. If their version changed, this changes no row, and the store raises Conflict.
UPDATE fleet_rules SET windows = :windows, no_go_times = :no_go_times, max_hosts_down = :max_hosts_down,
    max_machines_down = :max_machines_down, version = :version + 1
WHERE one = 1 AND version = :version;

-- name: reserve
-- Count a reservation. If another came first, this changes no row, and the store raises Conflict.
UPDATE fleet_rules SET reservations = :reservations + 1 WHERE one = 1 AND reservations = :reservations;

-- name: hold_clock
-- Hold the clock. Of two holds the earlier one stays, unless it is confirmed.
INSERT INTO clock_hold VALUES (1, :trusted, :noticed, :jumped_s, :node, :confirmed)
ON CONFLICT (one) DO UPDATE SET trusted = excluded.trusted, noticed = excluded.noticed, jumped_s = excluded.jumped_s,
    node = excluded.node, confirmed = excluded.confirmed
WHERE excluded.trusted < clock_hold.trusted OR clock_hold.confirmed IS NOT NULL;

-- name: release_clock
-- Confirm the hold that the operator saw. If there is another one, this changes no row, and the store raises Conflict.
UPDATE clock_hold SET confirmed = :at
WHERE one = 1 AND trusted = :trusted AND noticed = :noticed AND confirmed IS NULL;

-- name: wake_everything
-- Let the ticker work on every unfinished maintenance now.
UPDATE maintenances INDEXED BY maintenances_by_status SET wake_at = :at, version = version + 1
WHERE status IN ('Planned', 'Running', 'Paused');

-- name: lock_store_hold
-- Return whether the store is held. The transaction that runs this is the only one that writes.
SELECT resumed IS NULL AS held FROM store_hold WHERE one = 1;

-- name: hold_store
-- Hold the store. A hold that is not resumed stays.
INSERT INTO store_hold VALUES (1, :cause, :detail, :who, :held, NULL, '')
ON CONFLICT (one) DO UPDATE SET cause = excluded.cause, detail = excluded.detail, who = excluded.who,
    held = excluded.held, resumed = NULL
WHERE store_hold.resumed IS NOT NULL;

-- name: resume_store
-- Resume the store from the hold that the operator saw. If there is another one, this changes no row, and the store raises
-- Conflict.
UPDATE store_hold SET resumed = :at, identity = (SELECT identity FROM store_identity WHERE one = 1)
WHERE one = 1 AND held = :held AND resumed IS NULL;

-- name: position
-- Return which database this is, how far its audit has come, whether an operator resumed this very database, whether it is
-- held, and whether there is unfinished work.
SELECT identity, 0 AS timeline, (SELECT max(coalesce((SELECT max(id) FROM audit), 0), id) FROM audit_start WHERE one = 1) AS audit_id,
    EXISTS (SELECT 1 FROM store_hold h WHERE h.one = 1 AND h.resumed IS NOT NULL AND h.identity = i.identity) AS resumed,
    EXISTS (SELECT 1 FROM store_hold WHERE one = 1 AND resumed IS NULL) AS held,
    EXISTS (SELECT 1 FROM maintenances WHERE status IN ('Planned', 'Running', 'Paused')) AS unfinished
FROM store_identity i WHERE i.one = 1;

-- name: begin_epochs
-- Begin a new epoch in every scope: guests may have seen later incarnations, which must not be used again in the old epoch.
UPDATE scopes SET epoch = epoch + 1, incarnation = 1, version = version + 1 WHERE epoch > 0;

-- name: change_identity
-- Give the database a new identity.
INSERT INTO store_identity VALUES (1, lower(hex(randomblob(16))))
ON CONFLICT (one) DO UPDATE SET identity = excluded.identity;
