//! GID tables of a device on two interfaces.

use anyhow::{Context as _, Result, ensure};
use urxe_tests::verbs::Context;
use urxe_tests::{TIMEOUT, World, artifacts, in_world_with};

use crate::{gid, joined, row, two_cables};

/// Rows of the GID table of a device on two interfaces name the interface that has the address.
#[test]
fn gids_of_two_interfaces_name_their_own() {
    in_world_with(joined, || {
        let context = Context::open()?;
        let table = context.query_gid_table(64)?;
        for (wire, name) in [(1, c"wire1"), (2, c"wire2")] {
            let row = row(&context, gid(80 + wire, 1))?;
            let entry = table.iter().find(|entry| entry.gid_index == row).context("no such row")?;
            // SAFETY: a name with a NUL at its end.
            let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
            ensure!(index != 0 && entry.ndev_ifindex == index, "{name:?} is {index}, not {}", entry.ndev_ifindex);
        }
        Ok(())
    });
}

/// Files of rows name it, too.
#[test]
fn files_of_gids_of_two_interfaces_name_their_own() -> Result<()> {
    let world = World::new()?;
    let _other = two_cables(&world)?;
    let script = "cd /sys/class/infiniband/urxe0/ports/1
        for row in 0 1 2; do echo $(cat gids/$row gid_attrs/ndevs/$row); done";
    let mut command = world.host().command(artifacts::urxe()?);
    command.args(["run", "--netdev", "wire1+wire2", "--", "sh", "-ec", script]);
    let finished = world.host().start(command)?.finish(TIMEOUT)?.success()?;
    let rows: Vec<_> = finished.stdout.lines().collect();
    let zeros = "0000:0000:0000:0000:0000:ffff";
    let [default, others @ ..] = &rows[..] else { anyhow::bail!("{finished}") };
    ensure!(default.starts_with("fe80:") && default.ends_with(" wire1"), "{finished}");
    ensure!(others == [format!("{zeros}:0a51:0001 wire1"), format!("{zeros}:0a52:0001 wire2")], "{finished}");
    Ok(())
}
