//! Variables that look as if an option was meant. What is not known does nothing, and whoever set it would look for the
//! reason elsewhere.

use strsim::osa_distance;
use urxe_options::{ALL, RUN_VARIABLE};

use crate::options::CONFIG_VARIABLE;

/// Prefix of every variable of urxe.
const PREFIX: &str = "URXE_";

/// Letters of a name that may be wrong, missing, too many or exchanged.
const TYPOS: usize = 2;

/// Returns the known name that `word` was probably meant to be; `word` itself if it is known.
pub(crate) fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let near = known.map(|name| (osa_distance(word, name), name)).min();
    near.filter(|(typos, _)| *typos <= TYPOS).map(|(_, name)| name)
}

/// The mistakes in this process' environment, a line each.
pub(crate) fn in_environment() -> Vec<String> {
    in_names(std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()))
}

fn in_names(names: impl Iterator<Item = String>) -> Vec<String> {
    let known = || ALL.iter().map(|option| option.variable).chain([CONFIG_VARIABLE, RUN_VARIABLE]);
    let meant = |name: &str| nearest(name, known()).filter(|known| *known != name);
    let names = names.filter(|name| name.starts_with(PREFIX));
    names.filter_map(|name| Some(format!("{name} means nothing here: is it {}?", meant(&name)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelt_variables_get_a_suggestion() {
        let said = |name: &str| in_names([name.to_owned()].into_iter());
        assert_eq!(said("URXE_NETDEW"), ["URXE_NETDEW means nothing here: is it URXE_NETDEV?"]);
        assert_eq!(said("URXE_NET_DEV"), ["URXE_NET_DEV means nothing here: is it URXE_NETDEV?"]);
        assert_eq!(said("URXE_MUT"), ["URXE_MUT means nothing here: is it URXE_MTU?"]);
        assert_eq!(said("URXE_PCAP_SNAPLN"), ["URXE_PCAP_SNAPLN means nothing here: is it URXE_PCAP_SNAPLEN?"]);
        for silent in ["URXE_NETDEV", "URXE_CONFIG", "URXE_RUN", "URXE_TEST_LOOPBACK", "URXE_BIN_DIR", "NETDEW", "PATH"]
        {
            assert_eq!(said(silent), Vec::<String>::new(), "{silent}");
        }
    }
}
