//! Where everything goes: the one place that knows paths.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::{libibverbs, valgrind};

/// Suffixes of the library, one for each private provider ABI number that libibverbs has had since rdma-core 36.
/// Every libibverbs looks for its own number only (`VERBS_PROVIDER_SUFFIX` in libibverbs/dynamic_driver.c).
pub(crate) const PROVIDER_ABIS: [u32; 5] = [34, 57, 59, 64, 65];

/// Folder in which libibverbs expects the character devices (`RDMA_CDEV_DIR`, fixed when it was compiled).
pub(crate) const DEV_DIR: &str = "/dev/infiniband";

/// File that librdmacm opens in there (`dev_name` of librdmacm/cma.c).
pub(crate) const RDMA_CM: &str = "rdma_cm";

/// Where libibverbs looks for driver files (`IBV_CONFIG_DIR`). Debian, Ubuntu and RHEL all compile in this path.
const DRIVER_FILE: &str = "/etc/libibverbs.d/urxe.driver";

/// systemd recreates `/dev/infiniband` from here at boot: `/dev` does not survive one.
const TMPFILES_DIR: &str = "/usr/lib/tmpfiles.d";

/// libibverbs keeps `<SYSFS_PATH>/class/infiniband/<device>` in 256 bytes (`IBV_SYSFS_PATH_MAX`), and programs append
/// `/ports/1/gid_attrs/types/15` to it in buffers of the same size.
const SYSFS_PATH_LIMIT: usize = 180;

/// An installation: for the whole machine, or below a prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Installation for every program of the machine; libibverbs' own files name the provider too.
    Machine,
    /// Installation below one absolute folder; `IBV_DRIVERS` names the provider.
    Prefix(PathBuf),
}

impl Layout {
    /// The layout that `--prefix` (or its absence) asks for.
    pub(crate) fn new(prefix: Option<&Path>) -> Result<Self> {
        let Some(prefix) = prefix else { return Ok(Self::Machine) };
        let prefix = std::path::absolute(prefix).with_context(|| format!("--prefix {}", prefix.display()))?;
        let name = prefix.to_str().with_context(|| format!("--prefix {}: not valid UTF-8", prefix.display()))?;
        ensure!(
            !name.contains([':', ';', '\n']),
            "--prefix {name}: libibverbs splits IBV_DRIVERS at ':' and ';', choose another folder"
        );
        let layout = Self::Prefix(prefix.clone());
        let length = layout.sysfs().as_os_str().len();
        ensure!(
            length <= SYSFS_PATH_LIMIT,
            "--prefix {name}: too long, SYSFS_PATH would have {length} bytes and libibverbs cuts it off at 256"
        );
        Ok(layout)
    }

    fn state_dir(&self) -> PathBuf {
        match self {
            Self::Machine => PathBuf::from("/var/lib/urxe"),
            Self::Prefix(prefix) => prefix.join("share/urxe"),
        }
    }

    /// Root of the fake sysfs tree: the value of `SYSFS_PATH`.
    pub(crate) fn sysfs(&self) -> PathBuf {
        self.state_dir().join("sysfs")
    }

    /// Suppressions for valgrind.
    pub(crate) fn suppressions(&self) -> PathBuf {
        self.state_dir().join(valgrind::FILE)
    }

    /// The list of what was created.
    pub(crate) fn manifest(&self) -> PathBuf {
        self.state_dir().join("manifest")
    }

    /// The folder that libibverbs loads providers from.
    pub(crate) fn provider_dir(&self) -> Result<PathBuf> {
        match self {
            Self::Machine => libibverbs::provider_dir(),
            Self::Prefix(prefix) => Ok(prefix.join("lib/urxe")),
        }
    }

    /// Returns the value of `IBV_DRIVERS`: the only way to the provider below a prefix, and for a copy of libibverbs that a
    /// program brings along, which looks in another folder than the machine's.
    pub(crate) fn ibv_drivers(&self) -> Result<PathBuf> {
        Ok(self.provider_dir()?.join("liburxe"))
    }

    /// The driver file. A libibverbs that was installed elsewhere would not read one below a prefix.
    pub(crate) fn driver_file(&self) -> Option<PathBuf> {
        (*self == Self::Machine).then(|| PathBuf::from(DRIVER_FILE))
    }

    /// The folder of the `uverbsN` entries, when this layout is the one to create it.
    pub(crate) fn dev_dir(&self) -> Option<PathBuf> {
        (*self == Self::Machine).then(|| PathBuf::from(DEV_DIR))
    }

    /// The tmpfiles.d file, on machines that have systemd's folder for them.
    pub(crate) fn tmpfiles(&self) -> Option<PathBuf> {
        (*self == Self::Machine && Path::new(TMPFILES_DIR).is_dir()).then(|| Path::new(TMPFILES_DIR).join("urxe.conf"))
    }
}

/// File name of the library for provider ABI `abi`.
pub(crate) fn library_name(abi: u32) -> String {
    format!("liburxe-rdmav{abi}.so")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relative_prefix_becomes_absolute() {
        let layout = Layout::new(Some(Path::new("some/where"))).unwrap();
        assert!(layout.sysfs().is_absolute());
        assert!(layout.ibv_drivers().unwrap().is_absolute());
    }

    #[test]
    fn prefixes_that_libibverbs_cannot_read_are_refused() {
        assert!(Layout::new(Some(Path::new("/tmp/a:b"))).is_err());
        assert!(Layout::new(Some(Path::new("/tmp/a;b"))).is_err());
        assert!(Layout::new(Some(Path::new(&format!("/tmp/{}", "x".repeat(200))))).is_err());
        assert!(Layout::new(Some(Path::new("/tmp/with space"))).is_ok());
    }

    #[test]
    fn a_prefix_install_stays_below_its_prefix() {
        let layout = Layout::new(Some(Path::new("/p"))).unwrap();
        assert!(layout.sysfs().starts_with("/p"));
        assert!(layout.manifest().starts_with("/p"));
        assert!(layout.provider_dir().unwrap().starts_with("/p"));
        assert_eq!((layout.driver_file(), layout.dev_dir(), layout.tmpfiles()), (None, None, None));
    }
}
