//! The devices that were chosen, on the interfaces as they are now.

use anyhow::{Result, bail};
use urxe_net::Interface;
use urxe_options::Choices;

/// Interfaces of the devices, in their order, as the devices show them. They may be down or have no address.
pub(crate) fn interfaces(choices: &Choices) -> Result<Vec<Interface>> {
    let interface = |netdev: &str| Interface::by_name(netdev);
    let all: Vec<Interface> =
        choices.devices.iter().map(|device| interface(&device.netdev)).collect::<Result<_, _>>()?;
    // Addresses may come with the link.
    let are_complete = all.iter().all(|interface| interface.check_usable().is_ok());
    for address in choices.gids.iter().filter(|_| are_complete) {
        if !all.iter().any(|interface| interface.addresses().iter().any(|own| own.ip() == *address)) {
            let names: Vec<&str> = all.iter().map(Interface::name).collect();
            let has = match names[..] {
                [name] => format!("{name} has no such address"),
                _ => format!("none of {} has such an address", names.join(", ")),
            };
            bail!("--gid {address}: {has} (`ip address` lists them)");
        }
    }
    let shown = |interface: Interface| {
        let interface = interface.restricted(choices.mtu, &choices.gids).with_link_layer(choices.link_layer);
        interface.with_gid_layout(choices.gid_layout)
    };
    Ok(all.into_iter().map(shown).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_nobody_are_refused() {
        let choices = Choices { gids: vec!["192.0.2.1".parse().unwrap()], ..Choices::default() };
        let said = interfaces(&choices).unwrap_err().to_string();
        assert!(said.contains("192.0.2.1") && said.contains("lo has no such address"), "{said}");
    }

    #[test]
    fn a_missing_address_is_on_none_of_several_interfaces() {
        let lo = Choices::default().devices.remove(0);
        let devices = vec![lo.clone(), lo];
        let choices = Choices { devices, gids: vec!["192.0.2.1".parse().unwrap()], ..Choices::default() };
        let said = interfaces(&choices).unwrap_err().to_string();
        assert!(said.contains("none of lo, lo has such an address"), "{said}");
    }

    #[test]
    fn the_loopback_interface_by_default() {
        let chosen = interfaces(&Choices::default()).unwrap();
        assert_eq!(chosen.iter().map(Interface::name).collect::<Vec<_>>(), ["lo"]);
    }
}
