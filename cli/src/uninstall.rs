//! `urxe uninstall`.

use std::path::PathBuf;

use anyhow::Result;

use crate::install::require_root;
use crate::layout::Layout;
use crate::{out, plan};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The folder that was given to `urxe install`
    #[arg(long, value_name = "DIR")]
    prefix: Option<PathBuf>,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let Args { prefix } = args;
    let layout = Layout::new(prefix.as_deref())?;
    require_root(&layout, "uninstall")?;
    if plan::remove(&layout.manifest())? {
        out::print("uninstalled\n")
    } else {
        out::print(&format!("nothing to do: {} does not exist\n", layout.manifest().display()))
    }
}
