//! The integration tests of the stores, one binary.

mod backup;
mod bounds;
mod child;
mod clocks;
mod damage;
mod durability;
mod export;
mod full_disk;
mod groups;
mod postgres;
mod postgres_callers;
mod postgres_failover;
mod postgres_special;
mod postgres_tls;
mod postgres_turns;
mod read_only;
mod redis;
mod redis_server;
mod servers;
mod sharing;
mod sqlite;
mod stage;
mod transaction;
mod turns;
mod upgrade;
