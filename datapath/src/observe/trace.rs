//! What is traced. In: flows, and what live packets look like. Out: rows as the datapath has them.

use std::net::IpAddr;
use std::time::Duration;

use podwire_core::abi::{Direction, MatchBlock, MatchRow, TraceKey, TraceRow};
use podwire_core::stage::trace::LARGEST_TAG;

use super::filter::{Filter, words};
use crate::error::{Error, ErrorKind};

/// Packets of one direction between two places.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    /// Source address.
    pub source: IpAddr,
    /// Destination address, of the same family.
    pub destination: IpAddr,
    /// IP protocol, after IPv6 extension headers.
    pub protocol: u8,
    /// Source port; 0 for a protocol without ports.
    pub source_port: u16,
    /// Destination port; 0 for a protocol without ports.
    pub destination_port: u16,
}

/// A flow with a tag, which is to be traced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trace {
    /// Its number, of the caller's choice, in each of its observations. Not 0. Several flows may share one.
    pub number: u32,
    /// The DSCP value that its packets have, 1 to 63.
    pub tag: u8,
    /// The flow that they belong to.
    pub flow: Flow,
    /// How long.
    pub duration: Duration,
    /// The rest.
    pub options: TraceOptions,
}

/// What becomes of the packets of a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceOptions {
    /// A packet ends where it would be handed to a pod or leave the cluster: for packets made to be seen and no more.
    pub ends: bool,
    /// The DSCP value that packets leave with.
    pub original: u8,
    /// The next packet of the other direction is traced as well.
    pub replies: bool,
    /// The trace goes on where source or destination is translated.
    pub translated: bool,
    /// Only packets that are dropped are told: what happened on the node up to then, and the drop.
    pub dropped_only: bool,
    /// Live packets that match come from another node, without a tag.
    pub received: bool,
}

impl TraceOptions {
    fn flags(self) -> u32 {
        let flags = [
            (self.ends, TraceRow::FLAG_ENDS),
            (self.replies, TraceRow::FLAG_REPLIES),
            (self.translated, TraceRow::FLAG_TRANSLATED),
            (self.dropped_only, TraceRow::FLAG_DROPPED_ONLY),
            (self.received, TraceRow::FLAG_RECEIVED),
        ];
        flags.into_iter().filter(|(on, _)| *on).fold(0, |all, (_, flag)| all | flag)
    }
}

impl Trace {
    /// A trace whose packets go on, and lose their tag where podwire last sees them.
    pub fn new(number: u32, tag: u8, flow: Flow, duration: Duration) -> Self {
        Self { number, tag, flow, duration, options: TraceOptions::default() }
    }

    pub(super) fn key(&self) -> Result<TraceKey, Error> {
        let flow = &self.flow;
        check(self.number, self.tag)?;
        if flow.source.is_ipv4() != flow.destination.is_ipv4() {
            return Err(wrong(self.number, "its addresses are of one family"));
        }
        Ok(TraceKey {
            source: words(flow.source),
            destination: words(flow.destination),
            ports: u32::from(flow.source_port) << 16 | u32::from(flow.destination_port),
            protocol: flow.protocol.into(),
            tag: self.tag.into(),
            family: if flow.source.is_ipv4() { 4 } else { 6 },
        })
    }

    /// All rows of the trace, the flow's own first.
    pub(super) fn rows(&self, until: u64) -> Result<Vec<(TraceKey, TraceRow)>, Error> {
        let key = self.key()?;
        let row = TraceRow {
            until,
            number: self.number,
            flags: self.options.flags(),
            original: self.options.original.into(),
            tag: self.tag.into(),
            ..TraceRow::default()
        };
        let mut rows = vec![(key, row)];
        if self.options.replies {
            const NOT: u32 = TraceRow::FLAG_REPLIES | TraceRow::FLAG_ENDS | TraceRow::FLAG_RECEIVED;
            let flags = row.flags & !NOT | TraceRow::FLAG_REPLY;
            let reply = TraceRow { flags, original: 0, ..row };
            let reversed = key.reversed();
            rows.extend([(reversed, reply), (reversed.tagged(0), TraceRow { left: 1, ..reply })]);
        }
        Ok(rows)
    }
}

/// Where live packets are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// At the interface of an endpoint of this node.
    Hook {
        /// Its host side.
        ifindex: u32,
        /// What the pod sends, or what it receives.
        direction: Direction,
    },
    /// Among what other nodes trace already and send here.
    OtherNodes,
}

/// Live packets that become traced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Live {
    /// As [`Trace::number`].
    pub number: u32,
    /// The DSCP value that its packets get until podwire last sees them, 1 to 63.
    pub tag: u8,
    /// The one that packets get whose own value is `tag`.
    pub spare: u8,
    /// Where.
    pub place: Place,
    /// Which.
    pub filter: Filter,
    /// How long.
    pub duration: Duration,
    /// The most packets.
    pub count: u32,
    /// One of so many.
    pub sampling: u32,
    /// Bytes of each packet that are captured.
    pub capture: u32,
    /// The rest; the datapath itself finds `original`.
    pub options: TraceOptions,
}

impl Live {
    /// Where its row belongs: of what arrives, both tags.
    pub(super) fn blocks(&self) -> Vec<u32> {
        match self.place {
            Place::Hook { ifindex, direction } => vec![MatchBlock::of_hook(ifindex, direction)],
            Place::OtherNodes => {
                [self.tag, self.spare].map(|tag| MatchBlock::of_tag(tag.into())).into_iter().collect()
            }
        }
    }

    pub(super) fn row(&self, until: u64) -> Result<MatchRow, Error> {
        check(self.number, self.tag)?;
        check(self.number, self.spare)?;
        let row = self.filter.row().map_err(|what| wrong(self.number, what))?;
        Ok(MatchRow {
            until,
            number: self.number,
            flags: self.options.flags(),
            tag: self.tag.into(),
            spare: self.spare.into(),
            count: self.count,
            sampling: self.sampling.max(1),
            capture: self.capture,
            ..row
        })
    }
}

fn check(number: u32, tag: u8) -> Result<(), Error> {
    if number == 0 {
        return Err(wrong(number, "its number is above 0"));
    }
    if !(1..=LARGEST_TAG).contains(&tag) {
        return Err(wrong(number, "its tag is 1 to 63"));
    }
    Ok(())
}

fn wrong(number: u32, what: &str) -> Error {
    Error::new(ErrorKind::Invalid, format!("trace {number}: {what}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::expect_used, reason = "a test fails by panicking")]

    use super::*;

    fn live(filter: Filter) -> Live {
        Live {
            number: 7,
            tag: 3,
            spare: 7,
            place: Place::Hook { ifindex: 4, direction: Direction::Egress },
            filter,
            duration: Duration::from_secs(1),
            count: 1,
            sampling: 1,
            capture: 0,
            options: TraceOptions::default(),
        }
    }

    #[test]
    fn what_is_not_said_is_any() {
        let row = live(Filter::default()).row(1).expect("valid");
        assert_eq!(
            (row.source_mask, row.destination_mask, row.ports_mask, row.family),
            ([0; 2], [0; 2], 0, 0)
        );
        assert_eq!((row.protocol, row.tcp_flags_mask), (MatchRow::ANY_PROTOCOL, 0));
    }

    #[test]
    fn icmp_types_stand_where_ports_do() {
        let filter = Filter { icmp_type: Some(8), protocol: Some(1), ..Filter::default() };
        let row = live(filter).row(1).expect("valid");
        assert_eq!((row.ports, row.ports_mask), (0x0800_0000, 0xff00_0000));
        let row = live(Filter { icmp_code: Some(0), ..filter }).row(1).expect("valid");
        assert_eq!((row.ports, row.ports_mask), (0x0800_0000, 0xffff_0000));
    }

    #[test]
    fn addresses_of_two_families_are_refused() {
        let filter = Filter {
            source: "10.0.0.0/8".parse().ok(),
            destination: "fd00::/8".parse().ok(),
            ..Filter::default()
        };
        let error = live(filter).row(1).expect_err("two families");
        assert_eq!(error.to_string(), "trace 7: its addresses are of one family");
    }

    #[test]
    fn an_answer_is_awaited_under_tag_0() {
        let flow = Flow {
            source: [10, 0, 0, 1].into(),
            destination: [10, 0, 0, 2].into(),
            protocol: 6,
            source_port: 1000,
            destination_port: 80,
        };
        let options = TraceOptions { ends: true, replies: true, ..TraceOptions::default() };
        let trace = Trace { options, ..Trace::new(1, 9, flow, Duration::ZERO) };
        let rows = trace.rows(5).expect("valid");
        let tags: Vec<u32> = rows.iter().map(|(key, _)| key.tag).collect();
        assert_eq!(tags, [9, 9, 0]);
        assert!(rows[1..].iter().all(|(key, row)| {
            key.ports == 80 << 16 | 1000 && row.flags == TraceRow::FLAG_REPLY && row.tag == 9
        }));
    }
}
