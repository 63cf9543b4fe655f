//! What the laboratory gets of this program: the store of the command line, how files are opened, notes on stderr, and child
//! processes that do not outlive this one.

use anyhow::Result;
use longhaul_lab::Host;
use longhaul_stores::temporary::Kind;

use crate::app::App;
use crate::args::OwnServer;
use crate::exec::die_with_parent;
use crate::store;

/// On the store that the command line names, if it names one. The one of the settings may be at work.
pub(crate) fn host(app: &App) -> Result<Host> {
    on(app, app.settings.flag("store.url")?.map(str::to_owned))
}

/// On the store of the settings: a process of the laboratory gets it from its parent by the environment.
pub(crate) fn child_host(app: &App) -> Result<Host> {
    on(app, Some(app.settings.get("store.url")?.value.clone()))
}

fn on(app: &App, store: Option<String>) -> Result<Host> {
    let out = app.out.clone();
    Ok(Host {
        store,
        sqlite: store::options(&app.settings)?,
        die_with_parent,
        note: Box::new(move |text| out.note(text)),
    })
}

impl From<OwnServer> for Kind {
    fn from(own: OwnServer) -> Self {
        match own {
            OwnServer::Redis => Self::Redis,
            OwnServer::Postgres => Self::Postgres,
        }
    }
}
