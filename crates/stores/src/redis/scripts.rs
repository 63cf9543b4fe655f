//! The scripts: each a file of its own behind the pieces that it shares with others.

use redis::Script;

const TABLES: &str = include_str!("scripts/tables.lua");
const FLUSH: &str = include_str!("scripts/flush.lua");
const GRAPH: &str = include_str!("scripts/graph.lua");
const INSERT: &str = include_str!("scripts/insert.lua");
const ENQUEUE_PLAIN: &str = include_str!("scripts/enqueue_plain.lua");
const SETTLEMENT: &str = include_str!("scripts/settlement.lua");
const SETTLE_DONE: &str = include_str!("scripts/settle_done.lua");

macro_rules! scripts {
    ($($(#[$doc:meta])* $name:ident = [$($piece:ident),*] $file:literal;)*) => {
        /// All scripts, each loaded by the server when it is first asked for.
        pub(super) struct Scripts {
            $($(#[$doc])* pub(super) $name: Script,)*
        }

        impl Scripts {
            pub(super) fn new() -> Self {
                Self {
                    $($name: Script::new(&[TABLES, FLUSH, $($piece,)* include_str!($file)].join("\n")),)*
                }
            }
        }
    };
}

scripts! {
    enqueue = [GRAPH, INSERT, ENQUEUE_PLAIN] "scripts/enqueue.lua";
    claim = [GRAPH] "scripts/claim.lua";
    extend = [] "scripts/extend.lua";
    save = [] "scripts/save.lua";
    settle = [GRAPH, INSERT, SETTLEMENT, SETTLE_DONE] "scripts/settle.lua";
    parked = [] "scripts/parked.lua";
    unpark = [GRAPH, SETTLEMENT] "scripts/unpark.lua";
    cancel = [GRAPH] "scripts/cancel.lua";
    cancelling = [] "scripts/cancelling.lua";
    revive = [GRAPH] "scripts/revive.lua";
    delete = [GRAPH] "scripts/delete.lua";
    promote = [GRAPH] "scripts/promote.lua";
    expired_leases = [] "scripts/expired_leases.lua";
    prune = [GRAPH] "scripts/prune.lua";
    set_queue = [] "scripts/set_queue.lua";
    seal = [GRAPH] "scripts/seal.lua";
    fire = [GRAPH, INSERT] "scripts/fire.lua";
    get = [GRAPH] "scripts/get.lua";
    walk = [] "scripts/walk.lua";
    processes = [] "scripts/processes.lua";
}
