//! What was unwrapped, wrapped again: the same metadata and the same inner frame must come out.

use podwire_core::wire::{
    decap::{Metadata, Receiver, decapsulate},
    encap::{Encapsulation, OuterTemplate, PerPacket, Tunnel, encapsulate},
    erspan::iii::{Granularity, Integrity},
    ethernet, geneve, vxlan,
};

/// Decapsulates `frame`; when that finds a tunnel packet of a form that podwire sends, encapsulates its inner
/// frame with the same parameters and decapsulates the result.
pub fn encapsulate_again(frame: &[u8]) {
    let Ok(first) = decapsulate(frame, &Receiver::default()) else { return };
    let inner = &frame[first.inner.clone()];
    let Some((tunnel, packet)) = description(&first.metadata) else { return };
    let packet = PerPacket { inner_len: inner.len() as u32, ..packet };
    let template = OuterTemplate::new(&Encapsulation::new(first.outer, tunnel)).expect("what was read fits");
    let mut out = vec![0; frame.len() + 64];
    let link = ethernet::Header::default();
    // An inner frame that filled a jumbogram does not fit a second time.
    let Ok(len) = encapsulate(&template, &packet, &link, inner, &mut out) else { return };
    let second = decapsulate(&out[..len], &Receiver::default()).expect("what podwire sends can be read");
    assert_eq!(&out[second.inner], inner);
    assert_eq!(
        (second.outer, without_ranges(second.metadata)),
        (first.outer, without_ranges(first.metadata))
    );
}

/// The parameters with which podwire would send this; `None` for what it only reads.
fn description(metadata: &Metadata) -> Option<(Tunnel, PerPacket)> {
    let plain = PerPacket::default();
    Some(match *metadata {
        Metadata::Vxlan { vni } => (Tunnel::Vxlan { vni, port: vxlan::PORT }, plain),
        Metadata::Geneve { vni, ref options } if options.is_empty() => {
            (Tunnel::Geneve { vni, port: geneve::PORT }, plain)
        }
        Metadata::Gre { key, sequence } => (
            Tunnel::Gre { key, sequence: sequence.is_some() },
            PerPacket { sequence: sequence.unwrap_or(0), ..plain },
        ),
        Metadata::ErspanII { sequence, header } => (
            Tunnel::ErspanII { session: header.session, index: header.index },
            PerPacket {
                sequence,
                vlan_tci: u16::from(header.cos) << 13 | header.vlan,
                vlan_tag: header.vlan_tag as u32,
                truncated: header.truncated.into(),
                ..plain
            },
        ),
        Metadata::ErspanIII { sequence: Some(sequence), header }
            if header.ethernet
                && header.frame_type == 0
                && header.integrity == Integrity::Good
                && header.subheader.is_none() =>
        {
            let unit = match header.granularity {
                Granularity::HundredMicroseconds => 100_000,
                Granularity::HundredNanoseconds => 100,
                Granularity::Ieee1588 | Granularity::Custom => return None,
            };
            let tunnel = Tunnel::ErspanIII {
                session: header.session,
                hardware_id: header.hardware_id,
                sgt: header.sgt,
                direction: None,
                granularity: header.granularity,
            };
            let packet = PerPacket {
                timestamp_ns: u64::from(header.timestamp) * unit,
                sequence,
                direction: header.direction as u32,
                vlan_tci: u16::from(header.cos) << 13 | header.vlan,
                truncated: header.truncated.into(),
                ..plain
            };
            (tunnel, packet)
        }
        _ => return None,
    })
}

/// Where empty options lie differs with the headers before them.
fn without_ranges(metadata: Metadata) -> Metadata {
    match metadata {
        Metadata::Geneve { vni, .. } => Metadata::Geneve { vni, options: 0..0 },
        other => other,
    }
}
