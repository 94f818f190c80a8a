-- What is known of a host: what the fleet lists, and whether it is cordoned, by the maintenance of this id or by an operator ('').
CREATE TABLE hosts (
    name         plain PRIMARY KEY,
    labels       text NOT NULL,
    fault_domain integer NOT NULL CHECK (fault_domain BETWEEN 0 AND 999),
    connection   text NOT NULL CHECK (length(connection) <= 512),
    listed       boolean NOT NULL,
    cordoned     timestamptz,
    cordoned_by  text NOT NULL CHECK (cordoned_by = '' OR cordoned IS NOT NULL),
    version      integer NOT NULL CHECK (version >= 1)
);
