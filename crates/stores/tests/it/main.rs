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
mod postgres_special;
mod read_only;
mod redis;
mod redis_bounds;
mod redis_failover;
mod redis_server;
mod redis_tls;
mod redis_turns;
mod servers;
mod sharing;
mod sqlite;
mod stage;
mod transaction;
mod turns;
mod upgrade;
