//! Route and retries of a queue pair's packets.

use std::time::Duration;

use crate::error::{Error, Kind, Result};

/// Route and retries of a queue pair's packets, as [`QpConfig`](crate::rdma::QpConfig) documents
/// them. A field that is `None` takes the value of its environment variable, or the default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PathConfig {
    pub pkey: Option<u16>,
    pub service_level: Option<u8>,
    pub traffic_class: Option<u8>,
    pub flow_label: Option<u32>,
    pub hop_limit: Option<u8>,
    pub ack_timeout: Option<u8>,
    pub retry_count: Option<u8>,
    pub rnr_retry: Option<u8>,
    pub rnr_timer: Option<u8>,
}

/// The settings, resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PathSettings {
    pub pkey: Option<u16>,
    pub service_level: u8,
    pub traffic_class: u8,
    pub flow_label: u32,
    pub hop_limit: u8,
    pub ack_timeout: u8,
    /// `None`: the provider's retry count.
    pub retry_count: Option<u8>,
    pub rnr_retry: u8,
    pub rnr_timer: u8,
}

/// The default retry count of most providers.
pub(crate) const RETRIES: u8 = 7;
/// The bit of a partition key that marks a full member.
const MEMBER: u32 = 0x8000;

impl PathConfig {
    /// # Errors
    /// `Invalid` for a value outside its range.
    pub fn resolve(&self) -> Result<PathSettings> {
        PathSettings::of(self, |name| std::env::var(name).ok())
    }
}

impl PathSettings {
    fn of(config: &PathConfig, env: impl Fn(&str) -> Option<String>) -> Result<PathSettings> {
        let value = |name, set: Option<u32>, least, most| number(name, set, &env, least, most);
        let byte = |name, set: Option<u8>, least, most| -> Result<Option<u8>> {
            let value = value(name, set.map(u32::from), least, most)?;
            Ok(value.map(|value| value as u8))
        };
        let pkey = config.pkey.map(u32::from);
        let pkey = value("GDS_PKEY", pkey, 1, 0xffff)?;
        if pkey == Some(MEMBER) {
            let what = "GDS_PKEY=0x8000 does not name a partition: its lower 15 bits are 0";
            return Err(Error::new(CONFIGURE, Kind::Invalid, what));
        }
        Ok(PathSettings {
            pkey: pkey.map(|pkey| pkey as u16),
            service_level: byte("GDS_SL", config.service_level, 0, 15)?.unwrap_or(0),
            traffic_class: byte("GDS_TRAFFIC_CLASS", config.traffic_class, 0, 255)?.unwrap_or(0),
            flow_label: value("GDS_FLOW_LABEL", config.flow_label, 0, 0xf_ffff)?.unwrap_or(0),
            hop_limit: byte("GDS_HOP_LIMIT", config.hop_limit, 1, 255)?.unwrap_or(64),
            ack_timeout: byte("GDS_ACK_TIMEOUT", config.ack_timeout, 0, 31)?.unwrap_or(15),
            retry_count: byte("GDS_RETRY_COUNT", config.retry_count, 0, 7)?,
            rnr_retry: byte("GDS_RNR_RETRY", config.rnr_retry, 0, 7)?.unwrap_or(7),
            rnr_timer: byte("GDS_RNR_TIMER", config.rnr_timer, 0, 31)?.unwrap_or(12),
        })
    }

    /// The longest time after which a NIC fails work because the peer does not answer; `retries` is
    /// the retry count if these settings have none. `None`: it never does.
    pub fn retry_time(&self, retries: u8) -> Option<Duration> {
        let timeout = (self.ack_timeout > 0).then(|| 4096_u64 << self.ack_timeout)?;
        let times = 1 + u64::from(self.retry_count.unwrap_or(retries));
        // A NIC may take four times the timeout for each retry.
        Some(Duration::from_nanos(4 * timeout * times))
    }
}

const CONFIGURE: &str = "configure queue pair";

/// The value set in code, else that of the variable `name`, from `least` to `most`.
fn number(
    name: &str,
    set: Option<u32>,
    env: impl Fn(&str) -> Option<String>,
    least: u32,
    most: u32,
) -> Result<Option<u32>> {
    let text = match set {
        Some(value) => value.to_string(),
        None => match env(name) {
            Some(text) => text,
            None => return Ok(None),
        },
    };
    let digits = |digits: &str, radix| {
        // `from_str_radix` would accept a sign.
        let plain = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        u32::from_str_radix(digits, radix).ok().filter(|_| plain)
    };
    let value = match text.strip_prefix("0x") {
        Some(hex) => digits(hex, 16),
        None => digits(&text, 10),
    };
    match value.filter(|value| (least..=most).contains(value)) {
        Some(value) => Ok(Some(value)),
        None => {
            let what = format!("{name}={text} is not a valid number; the lowest value is {least}");
            Err(Error::new(CONFIGURE, Kind::Invalid, what).with_limit(most, "as the highest value"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_in_code_go_before_those_of_the_environment() {
        let env = |name: &str| match name {
            "GDS_SL" => Some("3".to_owned()),
            "GDS_PKEY" => Some("0x8012".to_owned()),
            "GDS_TRAFFIC_CLASS" => Some("106".to_owned()),
            _ => None,
        };
        let config = PathConfig {
            service_level: Some(5),
            ..PathConfig::default()
        };
        let is = PathSettings::of(&config, env).unwrap();
        let expected = PathSettings {
            pkey: Some(0x8012),
            service_level: 5,
            traffic_class: 106,
            flow_label: 0,
            hop_limit: 64,
            ack_timeout: 15,
            retry_count: None,
            rnr_retry: 7,
            rnr_timer: 12,
        };
        assert_eq!(is, expected);
    }

    #[test]
    fn values_out_of_range_are_refused_by_name() {
        for (name, most, wrong) in [
            ("GDS_PKEY", "65535", vec!["0", "0x8000", "65536", "0x10000"]),
            ("GDS_SL", "15", vec!["16", "-1", "+1", "low", ""]),
            ("GDS_TRAFFIC_CLASS", "255", vec!["256"]),
            ("GDS_FLOW_LABEL", "0xfffff", vec!["0x100000"]),
            ("GDS_HOP_LIMIT", "255", vec!["0", "256"]),
            ("GDS_ACK_TIMEOUT", "31", vec!["32", "1s"]),
            ("GDS_RETRY_COUNT", "7", vec!["8"]),
            ("GDS_RNR_RETRY", "7", vec!["8"]),
            ("GDS_RNR_TIMER", "31", vec!["32"]),
        ] {
            let with = |text: &str| {
                let env = |asked: &str| (asked == name).then(|| text.to_owned());
                PathSettings::of(&PathConfig::default(), env)
            };
            with(most).unwrap_or_else(|e| panic!("{e}"));
            for text in wrong {
                let e = with(text).unwrap_err();
                assert_eq!(e.kind(), Kind::Invalid, "{e}");
                assert!(e.to_string().contains(&format!("{name}={text}")), "{e}");
            }
        }
    }

    #[test]
    fn retry_time_is_four_times_what_retries_take() {
        let env = |_: &str| None;
        let settings = PathSettings::of(&PathConfig::default(), env).unwrap();
        let nominal = Duration::from_nanos(4096 << 15) * 8;
        assert_eq!(settings.retry_time(7), Some(4 * nominal));
        let never = PathSettings {
            ack_timeout: 0,
            ..settings
        };
        assert_eq!(never.retry_time(7), None);
        let longest = PathSettings {
            ack_timeout: 31,
            ..settings
        };
        assert!(longest.retry_time(7) > Some(Duration::from_secs(3600)));
    }
}
