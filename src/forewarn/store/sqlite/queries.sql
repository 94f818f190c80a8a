-- Every question and every write of the embedded store, by name. Lists come in as JSON arrays; what every decision reads
-- joins them, because for IN (SELECT ...) SQLite builds a table first.
-- INDEXED BY and a unary + stand where statistics could talk the planner into reading a whole table or all the history.

-- name: scopes_by_name
SELECT s.* FROM json_each(:names) n CROSS JOIN scopes s ON s.name = n.value ORDER BY s.name;

-- name: scopes_all
SELECT * FROM scopes ORDER BY name;

-- name: machines_of_scopes
SELECT * FROM machines WHERE scope IN (SELECT value FROM json_each(:names)) ORDER BY scope, name;

-- name: machines_by_key
-- The keys come as a JSON array of [scope, name].
SELECT m.* FROM json_each(:keys) k
JOIN machines m ON m.scope = k.value ->> 0 AND m.name = k.value ->> 1 ORDER BY m.scope, m.name;

-- name: machines_on_hosts
SELECT * FROM machines INDEXED BY machines_by_host
WHERE host <> '' AND host IN (SELECT value FROM json_each(:hosts)) ORDER BY scope, name;

-- name: machines_by_identity
-- The keys come as a JSON array of [interface, address].
SELECT m.* FROM json_each(:keys) k
JOIN machine_addresses a ON a.interface = k.value ->> 0 AND a.address = k.value ->> 1
JOIN machines m ON m.scope = a.scope AND m.name = a.name;

-- name: machines_by_instance_id
SELECT * FROM machines INDEXED BY machines_by_instance_id
WHERE instance_id <> '' AND instance_id IN (SELECT value FROM json_each(:ids));

-- name: machines_all
SELECT * FROM machines ORDER BY scope, name;

-- name: machines_known
-- A row per identity of a machine, in order of machines.
SELECT m.scope, m.name, m.update_domain, m.fault_domain, m.instance_id, a.interface, a.address
FROM machines m LEFT JOIN machine_addresses a ON a.scope = m.scope AND a.name = m.name
ORDER BY m.scope, m.name;

-- name: addresses_by_key
SELECT a.scope, a.name, a.address FROM json_each(:keys) k
JOIN machine_addresses a ON a.scope = k.value ->> 0 AND a.name = k.value ->> 1;

-- name: addresses_all
SELECT scope, name, address FROM machine_addresses;

-- name: scopes_of_maintenances
-- Where a maintenance still has something open.
SELECT DISTINCT scope FROM events
WHERE maintenance_id IN (SELECT value FROM json_each(:ids)) AND +ended IS NULL;

-- name: events_by_id
SELECT e.* FROM json_each(:ids) i CROSS JOIN events e ON e.id = i.value ORDER BY e.number;

-- name: events_open_in_scopes
SELECT e.* FROM json_each(:names) n CROSS JOIN events e INDEXED BY events_open_by_scope ON e.scope = n.value
WHERE e.ended IS NULL ORDER BY e.number;

-- name: events_else_of_maintenances
-- What events_open_in_scopes leaves out: the ended ones, and those in other scopes.
SELECT * FROM events
WHERE maintenance_id IN (SELECT value FROM json_each(:ids))
  AND (ended IS NOT NULL OR scope NOT IN (SELECT value FROM json_each(:names))) ORDER BY number;

-- name: maintenances_by_id
SELECT m.* FROM json_each(:ids) i CROSS JOIN maintenances m ON m.id = i.value ORDER BY m.id;

-- name: approvals_of_events
SELECT a.* FROM json_each(:ids) i CROSS JOIN approvals a ON a.event_id = i.value ORDER BY a.event_id, a.at, a.machine;

-- name: orders_of_events
SELECT o.* FROM json_each(:ids) i CROSS JOIN orders o ON o.id = i.value ORDER BY o.id;

-- name: due
SELECT id FROM maintenances WHERE wake_at <= :now ORDER BY wake_at, id LIMIT :limit;

-- name: next_wakeup
SELECT wake_at FROM maintenances WHERE wake_at IS NOT NULL ORDER BY wake_at LIMIT 1;

-- name: orders_in_state
SELECT * FROM orders INDEXED BY orders_by_state WHERE state = :state ORDER BY issued, id LIMIT :limit;

-- Lists. A page is found in two steps: the keys of its rows, sought for each scope, status and type asked for in an index
-- that has the page's order; then the rows. `:since` is '' and `:scopes` is NULL where all are wanted.

-- name: scopes_page
SELECT * FROM scopes WHERE name > :after ORDER BY name LIMIT :limit;

-- name: machines_page
SELECT * FROM machines WHERE (scope, name) > (:scope, :name) ORDER BY scope, name LIMIT :limit;

-- name: machines_page_of_scope
SELECT * FROM machines WHERE scope = :scope AND name > :name ORDER BY name LIMIT :limit;

-- name: machines_page_of_host
SELECT * FROM machines INDEXED BY machines_by_host
WHERE host <> '' AND host = :host AND (scope, name) > (:scope, :name)
  AND (:scopes IS NULL OR scope IN (SELECT value FROM json_each(:scopes)))
ORDER BY scope, name LIMIT :limit;

-- name: maintenance_keys
SELECT created AS at, id FROM maintenances INDEXED BY maintenances_by_status
WHERE status = :kind AND (created, id) < (:at, :id) ORDER BY created DESC, id DESC LIMIT :limit;

-- name: maintenance_keys_of_scope
SELECT created AS at, maintenance_id AS id FROM maintenance_scopes
WHERE scope = :scope AND status = :kind AND (created, maintenance_id) < (:at, :id)
ORDER BY created DESC, maintenance_id DESC LIMIT :limit;

-- name: order_keys
SELECT issued AS at, id FROM orders INDEXED BY orders_by_state
WHERE state = :kind AND (issued, id) < (:at, :id) ORDER BY issued DESC, id DESC LIMIT :limit;

-- name: order_keys_of_scope
SELECT issued AS at, id FROM orders INDEXED BY orders_by_scope
WHERE scope = :scope AND state = :kind AND (issued, id) < (:at, :id) ORDER BY issued DESC, id DESC LIMIT :limit;

-- name: events_by_number
SELECT e.* FROM json_each(:numbers) n CROSS JOIN events e ON e.number = n.value ORDER BY e.number DESC;

-- name: event_numbers
SELECT number FROM events
WHERE number < :before AND (:since = '' OR ended IS NULL OR ended >= :since)
ORDER BY number DESC LIMIT :limit;

-- name: event_numbers_of_kind
-- Of an ended status, as the next.
SELECT number FROM events INDEXED BY events_by_kind
WHERE ended IS NOT NULL AND status = :status AND type = :type AND number < :before
  AND (:since = '' OR ended >= :since)
ORDER BY number DESC LIMIT :limit;

-- name: event_numbers_of_scope
SELECT number FROM events INDEXED BY events_by_scope
WHERE scope = :scope AND number < :before AND (:since = '' OR ended IS NULL OR ended >= :since)
ORDER BY number DESC LIMIT :limit;

-- name: event_numbers_of_scope_and_kind
SELECT number FROM events INDEXED BY events_by_scope_and_kind
WHERE ended IS NOT NULL AND scope = :scope AND status = :status AND type = :type AND number < :before
  AND (:since = '' OR ended >= :since)
ORDER BY number DESC LIMIT :limit;

-- name: event_numbers_open
SELECT number FROM events INDEXED BY events_open
WHERE ended IS NULL AND number < :before
  AND status IN (SELECT value FROM json_each(:statuses)) AND type IN (SELECT value FROM json_each(:types))
ORDER BY number DESC LIMIT :limit;

-- name: event_numbers_open_of_scope
SELECT number FROM events INDEXED BY events_open_by_scope
WHERE ended IS NULL AND scope = :scope AND number < :before
  AND status IN (SELECT value FROM json_each(:statuses)) AND type IN (SELECT value FROM json_each(:types))
ORDER BY number DESC LIMIT :limit;

-- name: count_open
SELECT coalesce(sum(e.status = 'Planned'), 0) AS planned, coalesce(sum(e.status = 'Scheduled'), 0) AS scheduled,
  coalesce(sum(e.status = 'Started'), 0) AS started, coalesce(sum(e.status = 'Started' AND o.state = 'failed'), 0) AS failed
FROM events e INDEXED BY events_open LEFT JOIN orders o ON o.id = e.id
WHERE e.ended IS NULL;

-- name: count_open_of_scopes
SELECT coalesce(sum(e.status = 'Planned'), 0) AS planned, coalesce(sum(e.status = 'Scheduled'), 0) AS scheduled,
  coalesce(sum(e.status = 'Started'), 0) AS started, coalesce(sum(e.status = 'Started' AND o.state = 'failed'), 0) AS failed
FROM json_each(:scopes) n CROSS JOIN events e INDEXED BY events_open_by_scope ON e.scope = n.value
LEFT JOIN orders o ON o.id = e.id
WHERE e.ended IS NULL;

-- name: backlog
SELECT (SELECT min(not_before) FROM events INDEXED BY events_open WHERE ended IS NULL AND status = 'Scheduled') AS earliest_start,
    (SELECT min(wake_at) FROM maintenances WHERE wake_at IS NOT NULL) AS earliest_wake,
    (SELECT count(*) FROM orders WHERE state = 'open') AS open, (SELECT count(*) FROM orders WHERE state = 'running') AS running;

-- name: count_scopes
SELECT count(*) AS scopes FROM scopes;

-- name: count_scopes_of
SELECT count(*) AS scopes FROM scopes WHERE name IN (SELECT value FROM json_each(:scopes));

-- name: count_machines
SELECT count(*) AS machines FROM machines;

-- name: count_machines_of
SELECT count(*) AS machines FROM machines WHERE scope IN (SELECT value FROM json_each(:scopes));

-- name: event_numbers_of_machine
SELECT e.number FROM event_machines m CROSS JOIN events e ON e.number = m.event_number
WHERE m.scope = :scope AND m.machine = :machine AND m.event_number < :before
  AND :maintenance_id IN ('', e.maintenance_id) AND (:since = '' OR e.ended IS NULL OR e.ended >= :since)
  AND e.status IN (SELECT value FROM json_each(:statuses)) AND e.type IN (SELECT value FROM json_each(:types))
ORDER BY m.event_number DESC LIMIT :limit;

-- name: event_numbers_of_maintenance
SELECT number FROM events
WHERE maintenance_id = :maintenance_id AND +number < :before
  AND (:since = '' OR ended IS NULL OR ended >= :since)
  AND (:scopes IS NULL OR +scope IN (SELECT value FROM json_each(:scopes)))
  AND +status IN (SELECT value FROM json_each(:statuses)) AND +type IN (SELECT value FROM json_each(:types))
ORDER BY number DESC LIMIT :limit;

-- name: more_ended_since
-- A row when more than `:most` did.
SELECT ended FROM events INDEXED BY events_by_end WHERE ended IS NOT NULL AND ended >= :since LIMIT 1 OFFSET :most;

-- name: event_numbers_ended_since
SELECT number FROM events INDEXED BY events_by_end
WHERE ended IS NOT NULL AND ended >= :since AND +number < :before
  AND (:scopes IS NULL OR +scope IN (SELECT value FROM json_each(:scopes)))
  AND +status IN (SELECT value FROM json_each(:statuses)) AND +type IN (SELECT value FROM json_each(:types));

-- name: audit
SELECT * FROM audit WHERE id < :before ORDER BY id DESC LIMIT :limit;

-- name: audit_by_id
SELECT a.* FROM json_each(:ids) i CROSS JOIN audit a ON a.id = i.value;

-- name: audit_ids_of_scope
SELECT id AS number FROM audit INDEXED BY audit_by_scope
WHERE scope <> '' AND scope = :scope AND id < :before ORDER BY id DESC LIMIT :limit;

-- name: audit_of_maintenance
SELECT * FROM audit INDEXED BY audit_by_maintenance
WHERE maintenance_id <> '' AND maintenance_id = :maintenance_id AND id < :before
  AND (:scopes IS NULL OR scope IN (SELECT value FROM json_each(:scopes)))
ORDER BY id DESC LIMIT :limit;

-- name: audit_of_event
SELECT * FROM audit INDEXED BY audit_by_event
WHERE event_id <> '' AND event_id = :event_id AND id < :before AND :maintenance_id IN ('', maintenance_id)
  AND (:scopes IS NULL OR scope IN (SELECT value FROM json_each(:scopes)))
ORDER BY id DESC LIMIT :limit;

-- name: audit_stream
-- The same four, oldest first.
SELECT * FROM audit WHERE id > :after ORDER BY id LIMIT :limit;

-- name: audit_stream_ids_of_scope
SELECT id AS number FROM audit INDEXED BY audit_by_scope
WHERE scope <> '' AND scope = :scope AND id > :after ORDER BY id LIMIT :limit;

-- name: audit_stream_of_maintenance
SELECT * FROM audit INDEXED BY audit_by_maintenance
WHERE maintenance_id <> '' AND maintenance_id = :maintenance_id AND id > :after
  AND (:scopes IS NULL OR scope IN (SELECT value FROM json_each(:scopes)))
ORDER BY id LIMIT :limit;

-- name: audit_stream_of_event
SELECT * FROM audit INDEXED BY audit_by_event
WHERE event_id <> '' AND event_id = :event_id AND id > :after AND :maintenance_id IN ('', maintenance_id)
  AND (:scopes IS NULL OR scope IN (SELECT value FROM json_each(:scopes)))
ORDER BY id LIMIT :limit;

-- name: tokens_all
SELECT * FROM tokens INDEXED BY tokens_by_age ORDER BY created DESC, id DESC;

-- name: receipt
SELECT * FROM receipts WHERE token_id = :token_id AND key = :key;

-- name: versions
SELECT s.name, s.version FROM json_each(:names) n CROSS JOIN scopes s ON s.name = n.value;

-- name: put_scope
INSERT INTO scopes VALUES (:name, :kind, :approval, :approve_user_events, :max_user_operations, :terminate_notice_s,
    :minimum_notice_s, :enabled, :epoch, :incarnation, :version + 1, :changed)
ON CONFLICT (name) DO UPDATE SET kind = excluded.kind, approval = excluded.approval,
    approve_user_events = excluded.approve_user_events, max_user_operations = excluded.max_user_operations,
    terminate_notice_s = excluded.terminate_notice_s, minimum_notice_s = excluded.minimum_notice_s,
    enabled = excluded.enabled, epoch = excluded.epoch, incarnation = excluded.incarnation,
    version = excluded.version, changed = excluded.changed;

-- name: add_scope
-- One that must not be there yet: where it is, nothing happens, which the store notices.
INSERT INTO scopes VALUES (:name, :kind, :approval, :approve_user_events, :max_user_operations, :terminate_notice_s,
    :minimum_notice_s, :enabled, :epoch, :incarnation, :version + 1, :changed)
ON CONFLICT DO NOTHING;

-- name: remove_scope
DELETE FROM scopes WHERE name = :name;

-- name: put_machine
INSERT INTO machines VALUES (:scope, :name, :update_domain, :fault_domain, :host, :interface, :instance_id)
ON CONFLICT (scope, name) DO UPDATE SET update_domain = excluded.update_domain, fault_domain = excluded.fault_domain,
    host = excluded.host, interface = excluded.interface, instance_id = excluded.instance_id;

-- name: clear_instance_id
-- Identities may swap between machines in one change: every old one goes before any new one comes.
UPDATE machines SET instance_id = '' WHERE scope = :scope AND name = :name AND instance_id <> '';

-- name: clear_addresses
DELETE FROM machine_addresses WHERE scope = :scope AND name = :name;

-- name: put_address
INSERT INTO machine_addresses VALUES (:interface, :address, :scope, :name);

-- name: remove_machine
DELETE FROM machines WHERE scope = :scope AND name = :name;

-- name: add_maintenance
INSERT INTO maintenances VALUES (:id, :type, :source, :created, :created_by, :not_before, :earliest, :duration_s,
    :description, :emergency, :on_failure, :paused, :cancelled, :status, :wake_at, :version + 1, :ended, :told)
ON CONFLICT (id) DO NOTHING;

-- name: update_maintenance
UPDATE maintenances SET paused = :paused, cancelled = :cancelled, status = :status, wake_at = :wake_at,
    version = :version + 1, ended = :ended, told = :told
WHERE id = :id AND version = :version;

-- name: wake_maintenance
UPDATE maintenances SET wake_at = :at, version = version + 1 WHERE id = :id AND ended IS NULL;

-- name: put_event
-- An id that already belongs to another maintenance updates nothing, which the store notices.
INSERT INTO events (id, maintenance_id, wave, position, scope, update_domain, type, source, resources, description,
    duration_s, emergency, status, born_approved, needs_approval, approval, sequence, published, not_before,
    minimum_notice_s, started, ended, reason)
VALUES (:id, :maintenance_id, :wave, :position, :scope, :update_domain, :type, :source, :resources, :description,
    :duration_s, :emergency, :status, :born_approved, :needs_approval, :approval, :sequence, :published, :not_before,
    :minimum_notice_s, :started, :ended, :reason)
ON CONFLICT (id) DO UPDATE SET status = excluded.status, needs_approval = excluded.needs_approval,
    approval = excluded.approval, sequence = excluded.sequence, published = excluded.published,
    not_before = excluded.not_before, minimum_notice_s = excluded.minimum_notice_s, started = excluded.started,
    ended = excluded.ended, reason = excluded.reason
WHERE events.maintenance_id = excluded.maintenance_id;

-- name: add_approval
INSERT INTO approvals VALUES (:event_id, :machine, :who, :at, :origin) ON CONFLICT DO NOTHING;

-- name: put_order
INSERT INTO orders VALUES (:id, :issued, :deadline, :state, :attempt, :node, :taken, :ended, :reason, :output,
    (SELECT scope FROM events WHERE events.id = :id))
ON CONFLICT (id) DO UPDATE SET issued = excluded.issued, deadline = excluded.deadline, state = excluded.state,
    attempt = excluded.attempt, node = excluded.node, taken = excluded.taken, ended = excluded.ended,
    reason = excluded.reason, output = excluded.output;

-- name: add_audit
INSERT INTO audit (at, who, action, origin, scope, maintenance_id, event_id, detail)
VALUES (:at, :who, :action, :origin, :scope, :maintenance_id, :event_id, :detail);

-- name: add_token
INSERT INTO tokens VALUES (:id, :name, :role, :scopes, :digest, :created, :created_by) ON CONFLICT DO NOTHING;

-- name: remove_token
DELETE FROM tokens WHERE id = :id;

-- name: add_receipt
INSERT INTO receipts VALUES (:token_id, :key, :digest, :status, :body, :at) ON CONFLICT DO NOTHING;

-- name: old_maintenances
SELECT id FROM maintenances WHERE ended IS NOT NULL AND ended < :before ORDER BY ended LIMIT :limit;

-- name: forget_events
DELETE FROM events WHERE number IN
    (SELECT number FROM events WHERE maintenance_id IN (SELECT value FROM json_each(:ids)) LIMIT :limit);

-- name: forget_maintenances
DELETE FROM maintenances WHERE id IN (SELECT value FROM json_each(:ids))
    AND NOT EXISTS (SELECT 1 FROM events WHERE maintenance_id = maintenances.id);

-- name: forget_audit
-- The audit grows in order of time: the oldest come first by id.
DELETE FROM audit WHERE id IN (SELECT id FROM audit ORDER BY id LIMIT :limit) AND at < :before;

-- name: forget_receipts
DELETE FROM receipts WHERE (token_id, key) IN
    (SELECT token_id, key FROM receipts INDEXED BY receipts_by_age WHERE at < :before ORDER BY at LIMIT :limit);

-- name: record_last_seen
-- A machine that left meanwhile is not remembered.
INSERT INTO last_seen
SELECT scope, name, :at FROM machines WHERE scope = :scope AND name = :name
ON CONFLICT (scope, name) DO UPDATE SET at = excluded.at;

-- name: last_seen_by_scope
SELECT scope, max(at) AS at FROM last_seen WHERE scope IN (SELECT value FROM json_each(:names)) GROUP BY scope;

-- name: last_seen_by_key
SELECT s.* FROM json_each(:keys) k CROSS JOIN last_seen s ON s.scope = k.value ->> 0 AND s.name = k.value ->> 1;

-- name: record_first_seen
-- Of an event that was forgotten meanwhile nothing is remembered.
INSERT INTO sightings SELECT id, :machine, :at FROM events WHERE id = :event_id ON CONFLICT DO NOTHING;

-- name: sightings_of_event
SELECT machine, at FROM sightings WHERE event_id = :event_id ORDER BY machine;

-- name: machines_named
SELECT * FROM machines INDEXED BY machines_by_name WHERE name = :name ORDER BY scope LIMIT :limit;

-- name: event_ids_starting
-- By the unique index of the ids; so are the next two, by the primary key.
SELECT id FROM events INDEXED BY sqlite_autoindex_events_1
WHERE id >= :prefix AND id < :after AND (:scopes IS NULL OR scope IN (SELECT value FROM json_each(:scopes)))
ORDER BY id LIMIT :limit;

-- name: order_ids_starting
SELECT id FROM orders
WHERE id >= :prefix AND id < :after AND (:scopes IS NULL OR scope IN (SELECT value FROM json_each(:scopes)))
ORDER BY id LIMIT :limit;

-- name: maintenance_ids_starting
SELECT id FROM maintenances
WHERE id >= :prefix AND id < :after
  AND (:scopes IS NULL OR EXISTS (SELECT 1 FROM maintenance_scopes s INDEXED BY maintenance_scopes_by_maintenance
                                  WHERE s.maintenance_id = maintenances.id
                                    AND s.scope IN (SELECT value FROM json_each(:scopes))))
ORDER BY id LIMIT :limit;

-- name: clock_hold
SELECT trusted, noticed, jumped_s, node, confirmed FROM clock_hold WHERE one = 1;

-- name: hold_clock
-- Of two holds the earlier counts, unless it is confirmed.
INSERT INTO clock_hold VALUES (1, :trusted, :noticed, :jumped_s, :node, :confirmed)
ON CONFLICT (one) DO UPDATE SET trusted = excluded.trusted, noticed = excluded.noticed, jumped_s = excluded.jumped_s,
    node = excluded.node, confirmed = excluded.confirmed
WHERE excluded.trusted < clock_hold.trusted OR clock_hold.confirmed IS NOT NULL;

-- name: release_clock
-- The one that was looked at: another nobody has seen, and the store notices.
UPDATE clock_hold SET confirmed = :at
WHERE one = 1 AND trusted = :trusted AND noticed = :noticed AND confirmed IS NULL;

-- name: wake_everything
UPDATE maintenances INDEXED BY maintenances_by_status SET wake_at = :at, version = version + 1
WHERE status IN ('Planned', 'Running', 'Paused');
