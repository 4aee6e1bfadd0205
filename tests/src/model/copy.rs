//! What becomes of a copy, by the model. In: the frame, its `CopyRow`, a session, the path. Out: the outcome, and
//! for a tunnel the frame on the wire.

use anyhow::{Context, Result, ensure};
use podwire_datapath::core::abi::{CopyRow, Reason, SessionKind, SessionRow};
use podwire_datapath::core::stage::copy::{Outcome, Shape, Stamp, largest_for_device};
use podwire_datapath::core::wire::{encap, ethernet};

/// Where copies leave.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    /// Largest IP packet in bytes, `None` without a route.
    pub mtu: Option<u32>,
    /// The uplink's address.
    pub source: [u8; 6],
    /// The next hop's address.
    pub destination: [u8; 6],
}

/// What becomes of a copy for one session, and the frame that the tunnel carries.
///
/// `stamp` is what cannot be read from the frame.
///
/// # Errors
/// When the frame cannot be written, which is a mistake of the model.
pub fn copy(
    frame: &[u8],
    copy: &CopyRow,
    session: &SessionRow,
    path: &Path,
    stamp: &Stamp,
) -> Result<(Outcome, Option<Vec<u8>>)> {
    if session.kind == SessionKind::Tunnel as u32 {
        return tunnel(frame, copy, session, path, stamp);
    }
    ensure!(session.kind == SessionKind::Device as u32, "a session without a target");
    let Some(mtu) = path.mtu else {
        return Ok((Outcome::Lost(Reason::DeviceMissing), None));
    };
    let len = frame.len() as u32;
    let bytes = len.min(largest_for_device(copy.network_offset, mtu));
    Ok((Outcome::Sent { bytes, truncated: bytes < len }, None))
}

fn tunnel(
    frame: &[u8],
    copy: &CopyRow,
    session: &SessionRow,
    path: &Path,
    stamp: &Stamp,
) -> Result<(Outcome, Option<Vec<u8>>)> {
    let lost = |reason| Ok((Outcome::Lost(reason), None));
    let template = &session.template;
    let Some(whole) = Shape::new(copy, frame.len() as u32, false, 0) else {
        return lost(Reason::EncapsulationRefused);
    };
    let Some(mtu) = path.mtu else {
        return lost(Reason::NoRoute);
    };
    let shape = if whole.wire_len(copy, template) <= mtu {
        whole
    } else {
        match whole.cut(template, mtu) {
            Some(cut) => cut,
            None => return lost(Reason::TooBig),
        }
    };
    let inner = frame.get(..shape.inner_len as usize).context("the shape is longer than the frame")?;
    let link = ethernet::Header {
        destination: path.destination,
        source: path.source,
        ether_type: template.ether_type(),
    };
    let mut out = vec![0; ethernet::HEADER_LEN + encap::OUTER_MAX + inner.len()];
    let truncated = shape.inner_len < whole.inner_len;
    let vlan_tci = if copy.network_offset > ethernet::HEADER_LEN as u32 {
        u16::from_be_bytes([frame[14], frame[15]])
    } else {
        0
    };
    let stamp = Stamp { truncated, vlan_tci, ..*stamp };
    let len = encap::encapsulate(template, &shape.per_packet(copy, &stamp), &link, inner, &mut out)?;
    out.truncate(len);
    Ok((Outcome::Sent { bytes: len as u32, truncated }, Some(out)))
}
