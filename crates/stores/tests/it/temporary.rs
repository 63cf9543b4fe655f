//! Temporary servers leave nothing behind.

use std::path::{Path, PathBuf};

use longhaul_stores::temporary::{Kind, Server};

/// The pieces of memory that the processes of a Postgres share, as files.
fn shared_memory(server: &Server) -> Vec<PathBuf> {
    let read = |path: &Path| std::fs::read_to_string(path).expect("a file");
    let first = read(&server.folder().join("data/postmaster.pid"));
    let id = first.lines().next().expect("the number of a process");
    let maps = read(Path::new(&format!("/proc/{id}/maps")));
    let paths = maps.lines().filter_map(|line| line.split_once("/dev/shm/"));
    paths.map(|(_, name)| Path::new("/dev/shm").join(name)).filter(|path| path.exists()).collect()
}

#[test]
fn a_temporary_server_leaves_nothing_behind() {
    for kind in [Kind::Redis, Kind::Postgres] {
        let server = Server::start(kind, &[]).expect("a server");
        let folder = server.folder().to_owned();
        assert!(folder.is_dir(), "{folder:?}");
        let memory = if kind == Kind::Postgres { shared_memory(&server) } else { Vec::new() };
        assert_eq!(memory.is_empty(), kind == Kind::Redis, "{memory:?}");
        drop(server);
        assert!(!folder.exists(), "{folder:?}");
        assert!(!memory.iter().any(|path| path.exists()), "{memory:?}");
    }
}
