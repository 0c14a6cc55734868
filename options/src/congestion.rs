//! Congestion control.

use urxe_engine::congestion::{Algorithm, CongestionSettings, ParameterError, Parameters};

use crate::{CC, CC_PARAMS, ECN, Mistake, Opt};

/// Interfaces whose packets are ECN-capable.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Ecn {
    /// Every interface but the loopback interface, which marks nothing.
    #[default]
    Auto,
    /// Every interface.
    On,
    /// No interface.
    Off,
}

/// Values chosen for congestion control.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Congestion {
    /// Interfaces whose packets are ECN-capable.
    pub ecn: Ecn,
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Parameters of all algorithms.
    pub parameters: Parameters,
}

impl Congestion {
    /// Parses the values of the options; `None` is "not set".
    pub(crate) fn new(value: impl Fn(Opt) -> Option<String>) -> Result<Self, Mistake> {
        Ok(Self {
            ecn: value(ECN).map_or(Ok(Ecn::default()), |text| ecn(text.trim()))?,
            algorithm: value(CC).map_or(Ok(Algorithm::default()), |text| algorithm(text.trim()))?,
            parameters: value(CC_PARAMS).map_or(Ok(Parameters::default()), |text| parameters(&text))?,
        })
    }

    /// Settings of a queue pair on an interface of `line_rate` Mbit/s, 0 if that is unknown.
    #[must_use]
    pub const fn settings(&self, is_loopback: bool, line_rate: u32) -> CongestionSettings {
        let ecn = match self.ecn {
            Ecn::Auto => !is_loopback,
            Ecn::On => true,
            Ecn::Off => false,
        };
        CongestionSettings { ecn, algorithm: self.algorithm, parameters: self.parameters, line_rate }
    }
}

fn ecn(text: &str) -> Result<Ecn, Mistake> {
    match text {
        "auto" => Ok(Ecn::Auto),
        "1" => Ok(Ecn::On),
        "0" => Ok(Ecn::Off),
        _ => Err(Mistake::new(ECN, text, "1 for yes, 0 for no, or `auto`")),
    }
}

fn algorithm(text: &str) -> Result<Algorithm, Mistake> {
    let found = Algorithm::ALL.iter().find(|(name, _)| *name == text);
    found.map(|(_, algorithm)| *algorithm).ok_or_else(|| {
        let names: Vec<_> = Algorithm::ALL.iter().map(|(name, _)| format!("`{name}`")).collect();
        Mistake::new(CC, text, format!("there are {}", names.join(", ")))
    })
}

fn parameters(list: &str) -> Result<Parameters, Mistake> {
    let mut parameters = Parameters::default();
    for word in list.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        let refuse = |what: String| Err(Mistake::new(CC_PARAMS, list, what));
        let Some((name, value)) = word.split_once('=') else { return refuse(format!("`{word}` is not NAME=VALUE")) };
        let Ok(number) = value.trim().parse() else { return refuse(format!("`{value}` is no number")) };
        match parameters.set(name.trim(), number) {
            Ok(()) => {}
            Err(ParameterError::Unknown) => {
                let names: Vec<_> = Parameters::ALL.iter().map(|row| row.name).collect();
                return refuse(format!("there is no parameter `{}`; there are {}", name.trim(), names.join(", ")));
            }
            Err(ParameterError::Range(row)) => {
                return refuse(format!("{} is {} to {} ({})", row.name, row.least, row.most, row.unit));
            }
        }
    }
    Ok(parameters)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn congestion(set: &[(&str, &str)]) -> Result<Congestion, Mistake> {
        Congestion::new(|option| {
            set.iter().find(|(known, _)| *known == option.name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn values() {
        let chosen = congestion(&[]).unwrap();
        assert_eq!(chosen, Congestion::default());
        assert!(!chosen.settings(true, 0).ecn && chosen.settings(false, 0).ecn);
        let chosen =
            congestion(&[("ecn", "1"), ("cc", "dcqcn"), ("cc-params", "rpg_ai_rate=40, cnp_dscp=46")]).unwrap();
        assert_eq!((chosen.algorithm, chosen.parameters.rpg_ai_rate), (Algorithm::Dcqcn, 40));
        assert_eq!(chosen.parameters.cnp_dscp, 46);
        assert!(chosen.settings(true, 0).ecn);
        assert!(!congestion(&[("ecn", "0")]).unwrap().settings(false, 0).ecn);
    }

    #[test]
    fn mistakes_are_named() {
        for (name, value, said) in [
            ("ecn", "yes", "1 for yes"),
            ("cc", "reno", "`window`, `dcqcn`, `swift`"),
            ("cc-params", "rpg_ai_rate", "not NAME=VALUE"),
            ("cc-params", "rpg_ai_rate=x", "no number"),
            ("cc-params", "rpg_air_rate=1", "no parameter `rpg_air_rate`; there are rpg_time_reset"),
            ("cc-params", "cnp_dscp=64", "cnp_dscp is 0 to 63"),
        ] {
            let text = congestion(&[(name, value)]).unwrap_err().to_string();
            assert!(text.contains(said), "{text}");
        }
    }
}
