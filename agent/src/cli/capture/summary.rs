//! What became of a capture. In: what was written, and the agents' accounts. Out: lines for eyes, and numbers for the file.

use serde_json::Value;

/// A pod's interface in the file.
#[derive(Clone, Debug, Default)]
pub struct Interface {
    /// The pod.
    pub pod: String,
    /// Its node.
    pub node: String,
    /// Packets that were written.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// What its agent counted, at the end.
    pub account: Option<Account>,
}

/// What an agent counted at a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Packets that the datapath's rules let through.
    pub matched: u64,
    /// Of those, packets that were left out: the flow does not want them after all, or the time was over.
    pub filtered: u64,
    /// Packets that were lost.
    pub lost: u64,
    /// The same by reason.
    pub reasons: Vec<(String, u64)>,
}

impl Account {
    /// Of an agent's answer.
    pub fn read(pod: &Value) -> Self {
        let number = |field: &str| pod[field].as_u64().unwrap_or_default();
        let reasons = pod["lost"].as_object().into_iter().flatten();
        Self {
            matched: number("matched"),
            filtered: number("filtered"),
            lost: number("lostTotal"),
            reasons: reasons
                .map(|(reason, count)| (reason.clone(), count.as_u64().unwrap_or_default()))
                .collect(),
        }
    }

    /// `RingFull 12, ReaderSlow 3`.
    pub fn losses(&self) -> String {
        let each: Vec<String> =
            self.reasons.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
        each.join(", ")
    }
}

/// The last line.
pub fn summary(interfaces: &[Interface]) -> String {
    let packets: u64 = interfaces.iter().map(|one| one.packets).sum();
    let bytes: u64 = interfaces.iter().map(|one| one.bytes).sum();
    let lost: u64 = interfaces.iter().filter_map(|one| Some(one.account.as_ref()?.lost)).sum();
    let s = if packets == 1 { "" } else { "s" };
    let mut line = format!("captured {packets} packet{s}, {bytes} bytes");
    if interfaces.len() > 1 {
        let each: Vec<String> = interfaces.iter().map(|one| format!("{} {}", one.pod, one.packets)).collect();
        line += &format!(" ({})", each.join(", "));
    }
    line += &format!("; lost {lost}");
    let losing = interfaces.iter().filter_map(|one| {
        let account = one.account.as_ref().filter(|account| account.lost > 0)?;
        Some(format!("{}: {}", one.pod, account.losses()))
    });
    let losing: Vec<String> = losing.collect();
    if !losing.is_empty() {
        line += &format!(" ({})", losing.join("; "));
    }
    let silent: Vec<&str> =
        interfaces.iter().filter(|one| one.account.is_none()).map(|one| one.pod.as_str()).collect();
    if !silent.is_empty() {
        line += &format!("; of {} it is not known what was lost", silent.join(", "));
    }
    line
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn losses_are_told_by_pod_and_reason() {
        let pod = json!({"matched": 100, "lostTotal": 15, "lost": {"ReaderSlow": 3, "RingFull": 12}, "filtered": 2});
        let one = Interface {
            pod: "default/web-0".into(),
            packets: 83,
            bytes: 8300,
            account: Some(Account::read(&pod)),
            ..Interface::default()
        };
        assert_eq!(
            summary(std::slice::from_ref(&one)),
            "captured 83 packets, 8300 bytes; lost 15 (default/web-0: ReaderSlow 3, RingFull 12)"
        );
        let two = Interface { pod: "default/web-1".into(), packets: 1, ..Interface::default() };
        assert!(summary(&[one, two]).ends_with("; of default/web-1 it is not known what was lost"),);
    }
}
