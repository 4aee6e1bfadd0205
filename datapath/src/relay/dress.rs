//! A record's frame in its tunnel. In: a session, a record and its frame. Out: a packet for a [`Carrier`](super::carrier::Carrier).

use std::net::IpAddr;

use podwire_core::abi::{RelayRow, SessionRow};
use podwire_core::stage::copy::{Stamp, erspan_direction};
use podwire_core::wire::encap::{OUTER_MAX, OuterTemplate, PerPacket};
use podwire_core::wire::{erspan, ethernet, protocol};

use crate::offload::complete_checksum;
use crate::vlan::with_tag;

/// A packet with its outer headers.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Dressed {
    /// The session that it is for.
    pub(crate) session: u32,
    /// The tunnel's remote end.
    pub(crate) remote: IpAddr,
    /// What follows the outer IP header: UDP or GRE.
    pub(crate) protocol: u8,
    /// From the outer IP header on.
    pub(crate) packet: Vec<u8>,
    /// Where the outer transport header begins in it.
    pub(crate) transport: usize,
    /// Whether the frame in it is cut.
    pub(crate) truncated: bool,
}

impl Dressed {
    /// From the outer transport header on.
    pub(crate) fn payload(&self) -> &[u8] {
        self.packet.get(self.transport..).unwrap_or_default()
    }

    /// Bytes as the datapath counts them: with the outer Ethernet header.
    pub(crate) fn bytes(&self) -> u32 {
        (self.packet.len() + ethernet::HEADER_LEN) as u32
    }
}

/// The outer headers and the inner frame; `None` when that is too short to be one.
pub(super) fn dress(session: u32, row: &SessionRow, head: &RelayRow, captured: &[u8]) -> Option<Dressed> {
    let template = &row.template;
    let mut frame = with_tag(head.vlan, captured)?;
    let truncated = captured.len() < head.original as usize;
    if !truncated {
        complete_checksum(&mut frame);
    }
    let mut packet = outer(template, head, &frame, truncated);
    packet.extend_from_slice(&frame);
    Some(Dressed {
        session,
        remote: template.remote(),
        protocol: if template.kind().is_some_and(|kind| kind.is_udp()) {
            protocol::UDP
        } else {
            protocol::GRE
        },
        packet,
        transport: usize::from(template.transport_offset),
        truncated,
    })
}

/// The outer headers, with room for the frame behind them.
fn outer(template: &OuterTemplate, head: &RelayRow, frame: &[u8], truncated: bool) -> Vec<u8> {
    let (tag, tci) = tag_of(frame);
    let stamp = Stamp { time_ns: head.timestamp_ns, sequence: head.sequence, ..Stamp::default() };
    let packet = PerPacket {
        timestamp_ns: stamp.time_ns,
        inner_len: frame.len() as u32,
        flow_hash: head.flow_hash,
        sequence: stamp.sequence,
        direction: erspan_direction(head.direction),
        truncated: u32::from(truncated),
        ip_id: 0,
        vlan_tci: tci,
        vlan_tag: tag as u32,
        pad: 0,
    };
    let mut headers = [0; OUTER_MAX];
    let len = template.fill(&packet, &mut headers);
    let mut whole = Vec::with_capacity(len + frame.len());
    whole.extend_from_slice(headers.get(..len).unwrap_or_default());
    whole
}

fn tag_of(frame: &[u8]) -> (erspan::VlanTag, u16) {
    match frame.get(12..16) {
        Some(&[high, low, one, two])
            if matches!(
                u16::from_be_bytes([high, low]),
                ethernet::ETHER_TYPE_VLAN | ethernet::ETHER_TYPE_QINQ
            ) =>
        {
            (erspan::VlanTag::InFrame, u16::from_be_bytes([one, two]))
        }
        _ => (erspan::VlanTag::None, 0),
    }
}
