-- Every question and every write of the shared store, by name. Lists come in as arrays; the keys of machines as a JSON array.

-- name: scopes_by_name
SELECT * FROM scopes WHERE name = ANY(%(names)s::text[]) ORDER BY name;

-- name: scopes_all
SELECT * FROM scopes ORDER BY name;

-- name: machines_of_scopes
SELECT * FROM machines WHERE scope = ANY(%(names)s::text[]) ORDER BY scope, name;

-- name: machines_by_key
-- The keys come as a JSON array of [scope, name].
SELECT m.* FROM jsonb_array_elements(%(keys)s::jsonb) k
JOIN machines m ON m.scope = k ->> 0 AND m.name = k ->> 1 ORDER BY m.scope, m.name;

-- name: machines_on_hosts
SELECT * FROM machines
WHERE host <> '' AND host = ANY(%(hosts)s::text[]) ORDER BY scope, name;

-- name: machines_by_identity
-- The keys come as a JSON array of [interface, address].
SELECT m.* FROM jsonb_array_elements(%(keys)s::jsonb) k
JOIN machine_addresses a ON a.interface = k ->> 0 AND a.address = k ->> 1
JOIN machines m ON m.scope = a.scope AND m.name = a.name;

-- name: machines_by_instance_id
SELECT * FROM machines WHERE instance_id <> '' AND instance_id = ANY(%(ids)s::text[]);

-- name: machines_all
SELECT * FROM machines ORDER BY scope, name;

-- name: machines_known
-- A row per identity of a machine, in order of machines.
SELECT m.scope, m.name, m.update_domain, m.fault_domain, m.instance_id, a.interface, a.address
FROM machines m LEFT JOIN machine_addresses a ON a.scope = m.scope AND a.name = m.name
ORDER BY m.scope, m.name;

-- name: addresses_by_key
SELECT a.scope, a.name, a.address FROM jsonb_array_elements(%(keys)s::jsonb) k
JOIN machine_addresses a ON a.scope = k ->> 0 AND a.name = k ->> 1;

-- name: addresses_all
SELECT scope, name, address FROM machine_addresses;

-- name: scopes_of_maintenances
-- Where a maintenance still has something open.
SELECT DISTINCT scope FROM events
WHERE maintenance_id = ANY(%(ids)s::text[]) AND ended IS NULL;

-- name: events_by_id
SELECT * FROM events WHERE id = ANY(%(ids)s::text[]) ORDER BY number;

-- name: events_open_in_scopes
SELECT * FROM events WHERE scope = ANY(%(names)s::text[])
  AND ended IS NULL ORDER BY number;

-- name: events_else_of_maintenances
-- What events_open_in_scopes leaves out: the ended ones, and those in other scopes.
SELECT * FROM events
WHERE maintenance_id = ANY(%(ids)s::text[])
  AND (ended IS NOT NULL OR scope <> ALL(%(names)s::text[])) ORDER BY number;

-- name: maintenances_by_id
SELECT * FROM maintenances WHERE id = ANY(%(ids)s::text[]) ORDER BY id;

-- name: approvals_of_events
SELECT * FROM approvals WHERE event_id = ANY(%(ids)s::text[]) ORDER BY event_id, at, machine;

-- name: orders_of_events
SELECT * FROM orders WHERE id = ANY(%(ids)s::text[]) ORDER BY id;

-- name: due
SELECT id FROM maintenances WHERE wake_at <= %(now)s ORDER BY wake_at, id LIMIT %(limit)s;

-- name: next_wakeup
SELECT wake_at FROM maintenances WHERE wake_at IS NOT NULL ORDER BY wake_at LIMIT 1;

-- name: orders_in_state
SELECT * FROM orders WHERE state = %(state)s ORDER BY issued, id LIMIT %(limit)s;

-- Lists. A page is found in two steps: the keys of its rows, sought for each scope, status and type asked for in an index
-- that has the page's order; then the rows. `since` is '-infinity' and `scopes` is NULL where all are wanted.

-- name: scopes_page
SELECT * FROM scopes WHERE name > %(after)s ORDER BY name LIMIT %(limit)s;

-- name: machines_page
SELECT * FROM machines WHERE (scope, name) > (%(scope)s, %(name)s) ORDER BY scope, name LIMIT %(limit)s;

-- name: machines_page_of_scope
SELECT * FROM machines WHERE scope = %(scope)s AND name > %(name)s ORDER BY name LIMIT %(limit)s;

-- name: machines_page_of_host
SELECT * FROM machines
WHERE host <> '' AND host = %(host)s AND (scope, name) > (%(scope)s, %(name)s)
  AND (%(scopes)s::text[] IS NULL OR scope = ANY(%(scopes)s::text[]))
ORDER BY scope, name LIMIT %(limit)s;

-- name: maintenance_keys
SELECT created AS at, id FROM maintenances
WHERE status = %(kind)s AND (created, id) < (%(at)s, %(id)s) ORDER BY created DESC, id DESC LIMIT %(limit)s;

-- name: maintenance_keys_of_scope
SELECT created AS at, maintenance_id AS id FROM maintenance_scopes
WHERE scope = %(scope)s AND status = %(kind)s AND (created, maintenance_id) < (%(at)s, %(id)s)
ORDER BY created DESC, maintenance_id DESC LIMIT %(limit)s;

-- name: order_keys
SELECT issued AS at, id FROM orders
WHERE state = %(kind)s AND (issued, id) < (%(at)s, %(id)s) ORDER BY issued DESC, id DESC LIMIT %(limit)s;

-- name: order_keys_of_scope
SELECT issued AS at, id FROM orders
WHERE scope = %(scope)s AND state = %(kind)s AND (issued, id) < (%(at)s, %(id)s)
ORDER BY issued DESC, id DESC LIMIT %(limit)s;

-- name: events_by_number
SELECT * FROM events WHERE number = ANY(%(numbers)s::bigint[]) ORDER BY number DESC;

-- name: event_numbers
SELECT number FROM events
WHERE number < %(before)s AND (ended IS NULL OR ended >= %(since)s)
ORDER BY number DESC LIMIT %(limit)s;

-- name: event_numbers_of_kind
-- Of an ended status, as the next.
SELECT number FROM events
WHERE ended IS NOT NULL AND status = %(status)s AND type = %(type)s AND number < %(before)s
  AND ended >= %(since)s
ORDER BY number DESC LIMIT %(limit)s;

-- name: event_numbers_of_scope
SELECT number FROM events
WHERE scope = %(scope)s AND number < %(before)s AND (ended IS NULL OR ended >= %(since)s)
ORDER BY number DESC LIMIT %(limit)s;

-- name: event_numbers_of_scope_and_kind
SELECT number FROM events
WHERE ended IS NOT NULL AND scope = %(scope)s AND status = %(status)s AND type = %(type)s AND number < %(before)s
  AND ended >= %(since)s
ORDER BY number DESC LIMIT %(limit)s;

-- name: event_numbers_open
SELECT number FROM events
WHERE ended IS NULL AND number < %(before)s
  AND status = ANY(%(statuses)s::text[]) AND type = ANY(%(types)s::text[])
ORDER BY number DESC LIMIT %(limit)s;

-- name: event_numbers_open_of_scope
SELECT number FROM events
WHERE ended IS NULL AND scope = %(scope)s AND number < %(before)s
  AND status = ANY(%(statuses)s::text[]) AND type = ANY(%(types)s::text[])
ORDER BY number DESC LIMIT %(limit)s;

-- name: count_open
SELECT count(*) FILTER (WHERE e.status = 'Planned') AS planned, count(*) FILTER (WHERE e.status = 'Scheduled') AS scheduled,
    count(*) FILTER (WHERE e.status = 'Started') AS started,
    count(*) FILTER (WHERE e.status = 'Started' AND o.state = 'failed') AS failed
FROM events e LEFT JOIN orders o ON o.id = e.id
WHERE e.ended IS NULL;

-- name: count_open_of_scopes
SELECT count(*) FILTER (WHERE e.status = 'Planned') AS planned, count(*) FILTER (WHERE e.status = 'Scheduled') AS scheduled,
    count(*) FILTER (WHERE e.status = 'Started') AS started,
    count(*) FILTER (WHERE e.status = 'Started' AND o.state = 'failed') AS failed
FROM events e LEFT JOIN orders o ON o.id = e.id
WHERE e.ended IS NULL AND e.scope = ANY(%(scopes)s::text[]);

-- name: backlog
SELECT (SELECT min(not_before) FROM events WHERE ended IS NULL AND status = 'Scheduled') AS earliest_start,
    (SELECT min(wake_at) FROM maintenances WHERE wake_at IS NOT NULL) AS earliest_wake,
    (SELECT count(*) FROM orders WHERE state = 'open') AS open, (SELECT count(*) FROM orders WHERE state = 'running') AS running;

-- name: count_scopes
SELECT count(*) AS scopes FROM scopes;

-- name: count_scopes_of
SELECT count(*) AS scopes FROM scopes WHERE name = ANY(%(scopes)s::text[]);

-- name: count_machines
SELECT count(*) AS machines FROM machines;

-- name: count_machines_of
SELECT count(*) AS machines FROM machines WHERE scope = ANY(%(scopes)s::text[]);

-- name: event_numbers_of_machine
SELECT e.number FROM event_machines m JOIN events e ON e.number = m.event_number
WHERE m.scope = %(scope)s AND m.machine = %(machine)s AND m.event_number < %(before)s
  AND %(maintenance_id)s IN ('', e.maintenance_id) AND (e.ended IS NULL OR e.ended >= %(since)s)
  AND e.status = ANY(%(statuses)s::text[]) AND e.type = ANY(%(types)s::text[])
ORDER BY m.event_number DESC LIMIT %(limit)s;

-- name: event_numbers_of_maintenance
SELECT number FROM events
WHERE maintenance_id = %(maintenance_id)s AND number < %(before)s
  AND (ended IS NULL OR ended >= %(since)s)
  AND (%(scopes)s::text[] IS NULL OR scope = ANY(%(scopes)s::text[]))
  AND status = ANY(%(statuses)s::text[]) AND type = ANY(%(types)s::text[])
ORDER BY number DESC LIMIT %(limit)s;

-- name: more_ended_since
-- A row when more than `most` did.
SELECT ended FROM events WHERE ended IS NOT NULL AND ended >= %(since)s LIMIT 1 OFFSET %(most)s;

-- name: event_numbers_ended_since
SELECT number FROM events
WHERE ended IS NOT NULL AND ended >= %(since)s AND number < %(before)s
  AND (%(scopes)s::text[] IS NULL OR scope = ANY(%(scopes)s::text[]))
  AND status = ANY(%(statuses)s::text[]) AND type = ANY(%(types)s::text[]);

-- name: audit
SELECT * FROM audit WHERE id < %(before)s ORDER BY id DESC LIMIT %(limit)s;

-- name: audit_by_id
SELECT * FROM audit WHERE id = ANY(%(ids)s::bigint[]);

-- name: audit_ids_of_scope
SELECT id AS number FROM audit
WHERE scope <> '' AND scope = %(scope)s AND id < %(before)s ORDER BY id DESC LIMIT %(limit)s;

-- name: audit_of_maintenance
SELECT * FROM audit
WHERE maintenance_id <> '' AND maintenance_id = %(maintenance_id)s AND id < %(before)s
  AND (%(scopes)s::text[] IS NULL OR scope = ANY(%(scopes)s::text[]))
ORDER BY id DESC LIMIT %(limit)s;

-- name: audit_of_event
SELECT * FROM audit
WHERE event_id <> '' AND event_id = %(event_id)s AND id < %(before)s AND %(maintenance_id)s IN ('', maintenance_id)
  AND (%(scopes)s::text[] IS NULL OR scope = ANY(%(scopes)s::text[]))
ORDER BY id DESC LIMIT %(limit)s;

-- name: audit_stream
-- The same four, oldest first.
SELECT * FROM audit WHERE id > %(after)s ORDER BY id LIMIT %(limit)s;

-- name: audit_stream_ids_of_scope
SELECT id AS number FROM audit
WHERE scope <> '' AND scope = %(scope)s AND id > %(after)s ORDER BY id LIMIT %(limit)s;

-- name: audit_stream_of_maintenance
SELECT * FROM audit
WHERE maintenance_id <> '' AND maintenance_id = %(maintenance_id)s AND id > %(after)s
  AND (%(scopes)s::text[] IS NULL OR scope = ANY(%(scopes)s::text[]))
ORDER BY id LIMIT %(limit)s;

-- name: audit_stream_of_event
SELECT * FROM audit
WHERE event_id <> '' AND event_id = %(event_id)s AND id > %(after)s AND %(maintenance_id)s IN ('', maintenance_id)
  AND (%(scopes)s::text[] IS NULL OR scope = ANY(%(scopes)s::text[]))
ORDER BY id LIMIT %(limit)s;

-- name: tokens_all
SELECT * FROM tokens ORDER BY created DESC, id DESC;

-- name: receipt
SELECT * FROM receipts WHERE token_id = %(token_id)s AND key = %(key)s;

-- name: versions
-- Locked in order of their names, so that two changes to the same scopes wait for each other and never crosswise.
SELECT name, version FROM scopes WHERE name = ANY(%(names)s::text[]) ORDER BY name FOR NO KEY UPDATE;

-- name: put_scope
INSERT INTO scopes VALUES (%(name)s, %(kind)s, %(approval)s, %(approve_user_events)s, %(max_user_operations)s,
    %(terminate_notice_s)s, %(minimum_notice_s)s, %(enabled)s, %(epoch)s, %(incarnation)s, %(version)s + 1,
    %(changed)s)
ON CONFLICT (name) DO UPDATE SET kind = excluded.kind, approval = excluded.approval,
    approve_user_events = excluded.approve_user_events, max_user_operations = excluded.max_user_operations,
    terminate_notice_s = excluded.terminate_notice_s, minimum_notice_s = excluded.minimum_notice_s,
    enabled = excluded.enabled, epoch = excluded.epoch, incarnation = excluded.incarnation,
    version = excluded.version, changed = excluded.changed;

-- name: add_scope
-- One that must not be there yet: where it is, nothing happens, which the store notices.
INSERT INTO scopes VALUES (%(name)s, %(kind)s, %(approval)s, %(approve_user_events)s, %(max_user_operations)s,
    %(terminate_notice_s)s, %(minimum_notice_s)s, %(enabled)s, %(epoch)s, %(incarnation)s, %(version)s + 1,
    %(changed)s)
ON CONFLICT DO NOTHING;

-- name: remove_scope
DELETE FROM scopes WHERE name = %(name)s;

-- name: put_machine
INSERT INTO machines VALUES (%(scope)s, %(name)s, %(update_domain)s, %(fault_domain)s, %(host)s, %(interface)s,
    %(instance_id)s)
ON CONFLICT (scope, name) DO UPDATE SET update_domain = excluded.update_domain, fault_domain = excluded.fault_domain,
    host = excluded.host, interface = excluded.interface, instance_id = excluded.instance_id;

-- name: clear_instance_id
-- Identities may swap between machines in one change: every old one goes before any new one comes.
UPDATE machines SET instance_id = '' WHERE scope = %(scope)s AND name = %(name)s AND instance_id <> '';

-- name: clear_addresses
DELETE FROM machine_addresses WHERE scope = %(scope)s AND name = %(name)s;

-- name: put_address
INSERT INTO machine_addresses VALUES (%(interface)s, %(address)s, %(scope)s, %(name)s);

-- name: remove_machine
DELETE FROM machines WHERE scope = %(scope)s AND name = %(name)s;

-- name: add_maintenance
INSERT INTO maintenances VALUES (%(id)s, %(type)s, %(source)s, %(created)s, %(created_by)s, %(not_before)s,
    %(earliest)s, %(duration_s)s, %(description)s, %(emergency)s, %(on_failure)s, %(paused)s, %(cancelled)s,
    %(status)s, %(wake_at)s, %(version)s + 1, %(ended)s, %(told)s)
ON CONFLICT (id) DO NOTHING;

-- name: update_maintenance
UPDATE maintenances SET paused = %(paused)s, cancelled = %(cancelled)s, status = %(status)s, wake_at = %(wake_at)s,
    version = %(version)s + 1, ended = %(ended)s, told = %(told)s
WHERE id = %(id)s AND version = %(version)s;

-- name: wake_maintenance
UPDATE maintenances SET wake_at = %(at)s, version = version + 1 WHERE id = %(id)s AND ended IS NULL;

-- name: put_event
-- An id that already belongs to another maintenance updates nothing, which the store notices.
INSERT INTO events (id, maintenance_id, wave, position, scope, update_domain, type, source, resources, description,
    duration_s, emergency, status, born_approved, needs_approval, approval, sequence, published, not_before,
    minimum_notice_s, started, ended, reason)
VALUES (%(id)s, %(maintenance_id)s, %(wave)s, %(position)s, %(scope)s, %(update_domain)s, %(type)s, %(source)s,
    %(resources)s, %(description)s, %(duration_s)s, %(emergency)s, %(status)s, %(born_approved)s,
    %(needs_approval)s, %(approval)s, %(sequence)s, %(published)s, %(not_before)s, %(minimum_notice_s)s,
    %(started)s, %(ended)s, %(reason)s)
ON CONFLICT (id) DO UPDATE SET status = excluded.status, needs_approval = excluded.needs_approval,
    approval = excluded.approval, sequence = excluded.sequence, published = excluded.published,
    not_before = excluded.not_before, minimum_notice_s = excluded.minimum_notice_s, started = excluded.started,
    ended = excluded.ended, reason = excluded.reason
WHERE events.maintenance_id = excluded.maintenance_id;

-- name: add_approval
INSERT INTO approvals VALUES (%(event_id)s, %(machine)s, %(who)s, %(at)s, %(origin)s) ON CONFLICT DO NOTHING;

-- name: put_order
INSERT INTO orders VALUES (%(id)s::text, %(issued)s, %(deadline)s, %(state)s, %(attempt)s, %(node)s, %(taken)s,
    %(ended)s, %(reason)s, %(output)s, (SELECT scope FROM events WHERE events.id = %(id)s::text))
ON CONFLICT (id) DO UPDATE SET issued = excluded.issued, deadline = excluded.deadline, state = excluded.state,
    attempt = excluded.attempt, node = excluded.node, taken = excluded.taken, ended = excluded.ended,
    reason = excluded.reason, output = excluded.output;

-- name: add_audit
INSERT INTO audit (at, who, action, origin, scope, maintenance_id, event_id, detail)
VALUES (%(at)s, %(who)s, %(action)s, %(origin)s, %(scope)s, %(maintenance_id)s, %(event_id)s, %(detail)s);

-- name: add_token
INSERT INTO tokens VALUES (%(id)s, %(name)s, %(role)s, %(scopes)s, %(digest)s, %(created)s, %(created_by)s)
ON CONFLICT DO NOTHING;

-- name: remove_token
DELETE FROM tokens WHERE id = %(id)s;

-- name: add_receipt
INSERT INTO receipts VALUES (%(token_id)s, %(key)s, %(digest)s, %(status)s, %(body)s, %(at)s) ON CONFLICT DO NOTHING;

-- name: old_maintenances
SELECT id FROM maintenances WHERE ended IS NOT NULL AND ended < %(before)s ORDER BY ended LIMIT %(limit)s;

-- name: forget_events
DELETE FROM events WHERE number IN
    (SELECT number FROM events WHERE maintenance_id = ANY(%(ids)s::text[]) LIMIT %(limit)s);

-- name: forget_maintenances
DELETE FROM maintenances WHERE id = ANY(%(ids)s::text[])
    AND NOT EXISTS (SELECT FROM events WHERE maintenance_id = maintenances.id);

-- name: forget_audit
-- The audit grows in order of time: the oldest come first by id.
DELETE FROM audit WHERE id IN (SELECT id FROM audit ORDER BY id LIMIT %(limit)s) AND at < %(before)s;

-- name: forget_receipts
DELETE FROM receipts WHERE (token_id, key) IN
    (SELECT token_id, key FROM receipts WHERE at < %(before)s ORDER BY at LIMIT %(limit)s);

-- name: record_last_seen
-- A machine that left meanwhile is not remembered.
INSERT INTO last_seen
SELECT scope, name, %(at)s FROM machines WHERE scope = %(scope)s AND name = %(name)s
ON CONFLICT (scope, name) DO UPDATE SET at = greatest(last_seen.at, excluded.at);

-- name: last_seen_by_scope
SELECT scope, max(at) AS at FROM last_seen WHERE scope = ANY(%(names)s::text[]) GROUP BY scope;

-- name: last_seen_by_key
SELECT s.* FROM jsonb_array_elements(%(keys)s::jsonb) k
JOIN last_seen s ON s.scope = k ->> 0 AND s.name = k ->> 1;

-- name: record_first_seen
-- Of an event that was forgotten meanwhile nothing is remembered.
INSERT INTO sightings SELECT id, %(machine)s, %(at)s FROM events WHERE id = %(event_id)s ON CONFLICT DO NOTHING;

-- name: sightings_of_event
SELECT machine, at FROM sightings WHERE event_id = %(event_id)s ORDER BY machine;

-- name: machines_named
SELECT * FROM machines WHERE name = %(name)s ORDER BY scope LIMIT %(limit)s;

-- name: event_ids_starting
-- By the unique index of the ids; so are the next two, by the primary key.
SELECT id FROM events
WHERE id >= %(prefix)s AND id < %(after)s AND (%(scopes)s::text[] IS NULL OR scope = ANY(%(scopes)s::text[]))
ORDER BY id LIMIT %(limit)s;

-- name: order_ids_starting
SELECT id FROM orders
WHERE id >= %(prefix)s AND id < %(after)s AND (%(scopes)s::text[] IS NULL OR scope = ANY(%(scopes)s::text[]))
ORDER BY id LIMIT %(limit)s;

-- name: maintenance_ids_starting
SELECT id FROM maintenances
WHERE id >= %(prefix)s AND id < %(after)s
  AND (%(scopes)s::text[] IS NULL OR EXISTS (SELECT 1 FROM maintenance_scopes s
                                             WHERE s.maintenance_id = maintenances.id
                                               AND s.scope = ANY(%(scopes)s::text[])))
ORDER BY id LIMIT %(limit)s;

-- name: clock_hold
SELECT trusted, noticed, jumped_s, node, confirmed FROM clock_hold WHERE one;

-- name: hold_clock
-- Of two holds the earlier counts, unless it is confirmed.
INSERT INTO clock_hold VALUES (true, %(trusted)s, %(noticed)s, %(jumped_s)s, %(node)s, %(confirmed)s)
ON CONFLICT (one) DO UPDATE SET trusted = excluded.trusted, noticed = excluded.noticed, jumped_s = excluded.jumped_s,
    node = excluded.node, confirmed = excluded.confirmed
WHERE excluded.trusted < clock_hold.trusted OR clock_hold.confirmed IS NOT NULL;

-- name: release_clock
-- The one that was looked at: another nobody has seen, and the store notices.
UPDATE clock_hold SET confirmed = %(at)s
WHERE one AND trusted = %(trusted)s AND noticed = %(noticed)s AND confirmed IS NULL;

-- name: wake_everything
UPDATE maintenances SET wake_at = %(at)s, version = version + 1
WHERE status IN ('Planned', 'Running', 'Paused');

-- The rest is about being several.

-- name: lock_maintenances
SELECT id, version FROM maintenances WHERE id = ANY(%(ids)s::text[]) ORDER BY id FOR NO KEY UPDATE;

-- name: add_change
-- From here to the commit one change at a time: what NOTIFY asks for anyway, and what keeps the audit's ids in order. One that was
-- decided too long ago by now, however long it waited, is refused.
WITH locked AS MATERIALIZED (SELECT pg_advisory_xact_lock(%(lock)s))
INSERT INTO changes (everything, scopes, machines)
SELECT %(everything)s, %(scopes)s::jsonb, %(machines)s::jsonb FROM locked
RETURNING pg_notify('forewarn', number::text), CASE WHEN clock_timestamp() > %(until)s::timestamptz THEN refuse_late() END;

-- name: changes_since
SELECT number, xid::text::bigint AS xid, everything, scopes, machines FROM changes
WHERE xid >= %(xid)s::text::xid8 ORDER BY number;

-- name: where_we_are
-- The oldest transaction that is still open: every change of an older one is in `changes` already.
SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS horizon, forgotten::text::bigint AS forgotten, identity,
    timeline, clock_timestamp() AS now FROM cluster;

-- name: forget_changes
-- Nothing that a transaction still open could have come before: whoever looks once a second has read it all.
WITH old AS (DELETE FROM changes WHERE number IN
        (SELECT number FROM changes
         WHERE at < clock_timestamp() - %(kept_s)s * interval '1 second' AND xid < pg_snapshot_xmin(pg_current_snapshot())
         ORDER BY at LIMIT %(limit)s)
    RETURNING xid),
told AS (UPDATE cluster SET forgotten = (SELECT max(xid::text::bigint)::text::xid8 FROM old)
    WHERE (SELECT max(xid::text::bigint) FROM old) > forgotten::text::bigint)
SELECT count(*) AS forgotten FROM old;

-- name: server
-- Which server we talk to, whether it is the one the nodes agreed on, and of which version the tables are. Replicas have the same
-- oids; where a dump is restored, on the same server too, this table has another.
SELECT found.*, cluster.identity = found.identity AND cluster.timeline = found.timeline AS same,
    (SELECT max(version) FROM schema_version) AS schema
FROM cluster, (SELECT system_identifier || '/' || 'cluster'::regclass::oid AS identity,
    ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint AS timeline FROM pg_control_system()) found;

-- name: lock_cluster
SELECT identity, timeline, clock_timestamp() AS now FROM cluster FOR UPDATE;

-- name: lock_scopes
-- All of them in the order in which changes lock theirs.
SELECT count(*) FROM (SELECT FROM scopes ORDER BY name FOR NO KEY UPDATE) locked;

-- name: adopt_cluster
UPDATE cluster SET identity = (SELECT system_identifier || '/' || 'cluster'::regclass::oid FROM pg_control_system()),
    timeline = ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint,
    forgotten = '0';

-- name: forget_all_changes
DELETE FROM changes;

-- name: begin_epochs
-- Far enough that nothing the lost commits can have counted to comes again.
UPDATE scopes SET epoch = epoch + 1000 * %(steps)s::bigint, incarnation = 1,
    version = version + 1000000 * %(steps)s::bigint;

-- name: skip_lost_numbers
-- Far enough that no number the lost commits had comes again: streams go by them.
SELECT setval(name, nextval(name) + 1000000 * %(steps)s::bigint) FROM (VALUES (pg_get_serial_sequence('audit', 'id')),
    (pg_get_serial_sequence('events', 'number')), (pg_get_serial_sequence('changes', 'number'))) sequences (name);

-- name: shorten_leases
-- The clock went back: one that ends later than it could is as one just taken. Somebody else may be at it.
UPDATE leases SET until = clock_timestamp() + %(seconds)s * interval '1 second' WHERE name IN
    (SELECT name FROM leases WHERE until > clock_timestamp() + %(seconds)s * interval '1 second' FOR UPDATE SKIP LOCKED);

-- name: take_lease
-- Ours, if nobody holds it, or we do.
INSERT INTO leases VALUES (%(name)s, %(node)s, clock_timestamp() + %(seconds)s * interval '1 second')
ON CONFLICT (name) DO UPDATE SET node = excluded.node, until = excluded.until
WHERE leases.node = excluded.node OR leases.until < clock_timestamp();

-- name: drop_lease
DELETE FROM leases WHERE name = %(name)s AND node = %(node)s;

-- name: forget_leases
DELETE FROM leases WHERE until < clock_timestamp() - interval '1 day';

-- name: live_nodes
SELECT node FROM leases
WHERE name = 'node ' || node AND until >= clock_timestamp() - %(past_s)s * interval '1 second';

-- name: now
SELECT clock_timestamp() AS now;

-- name: standbys
SELECT count(*) FILTER (WHERE sync_state IN ('sync', 'quorum')) AS synchronous,
    count(*) FILTER (WHERE sync_state IS NULL) AS hidden FROM pg_stat_replication;
