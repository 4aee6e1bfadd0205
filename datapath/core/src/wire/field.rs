//! Reading and writing of fixed fields: the only places where headers touch bytes.

use super::{Layer, Problem, WireError};

/// The bytes of a frame from `at` on, when there are at least `needed` of them.
pub(super) fn rest(layer: Layer, frame: &[u8], at: usize, needed: usize) -> Result<&[u8], WireError> {
    let bytes = frame.get(at..).unwrap_or_default();
    if bytes.len() < needed {
        return Err(WireError::truncated(layer, at, needed, bytes.len()));
    }
    Ok(bytes)
}

/// `N` bytes at `at`; zeros where the bytes end. Views call it only for what their `parse` has checked.
#[inline]
pub(super) fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
}

/// A byte.
#[inline]
pub(super) fn byte(bytes: &[u8], at: usize) -> u8 {
    bytes.get(at).copied().unwrap_or(0)
}

/// A big-endian 16-bit field.
#[inline]
pub(super) fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(array(bytes, at))
}

/// A big-endian 32-bit field.
#[inline]
pub(super) fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(array(bytes, at))
}

/// A big-endian 24-bit field.
#[inline]
pub(super) fn be24(bytes: &[u8], at: usize) -> u32 {
    let [a, b, c] = array(bytes, at);
    u32::from_be_bytes([0, a, b, c])
}

/// The bytes from `start` up to `end`, or what there is of them.
#[inline]
pub(super) fn range(bytes: &[u8], start: usize, end: usize) -> &[u8] {
    bytes.get(start..end.min(bytes.len())).unwrap_or_default()
}

/// Writes `header` at the start of `out`.
pub(super) fn put<const N: usize>(layer: Layer, out: &mut [u8], header: [u8; N]) -> Result<usize, WireError> {
    let had = out.len();
    let Some(space) = out.first_chunk_mut() else {
        return Err(WireError::new(layer, Problem::NoSpace, 0, N, had));
    };
    *space = header;
    Ok(N)
}

/// Writes `header` and then `tail` at the start of `out`.
pub(super) fn put_with<const N: usize>(
    layer: Layer,
    out: &mut [u8],
    header: [u8; N],
    tail: &[u8],
) -> Result<usize, WireError> {
    put_slices(layer, out, &header, tail)
}

/// [`put_with`] for a header whose length is not known beforehand.
pub(super) fn put_slices(
    layer: Layer,
    out: &mut [u8],
    header: &[u8],
    tail: &[u8],
) -> Result<usize, WireError> {
    let had = out.len();
    let needed = header.len() + tail.len();
    let Some(space) = out.get_mut(..needed) else {
        return Err(WireError::new(layer, Problem::NoSpace, 0, needed, had));
    };
    let (start, rest) = space.split_at_mut(header.len());
    start.copy_from_slice(header);
    rest.copy_from_slice(tail);
    Ok(needed)
}

/// Refuses a value above `max`; `offset` is that of the field in its header.
pub(super) const fn at_most(layer: Layer, offset: usize, value: usize, max: usize) -> Result<(), WireError> {
    if value > max {
        return Err(WireError::new(layer, Problem::ValueTooLarge, offset, max, value));
    }
    Ok(())
}

/// Refuses a length that is no multiple of `unit`; `offset` is that of the length field.
pub(super) const fn whole_units(
    layer: Layer,
    offset: usize,
    len: usize,
    unit: usize,
) -> Result<(), WireError> {
    if len.is_multiple_of(unit) {
        return Ok(());
    }
    Err(WireError::unsupported(layer, offset, len.next_multiple_of(unit), len))
}

/// Type and data of an option, as IPv4 and TCP have them.
pub(super) type TypeAndData<'a> = (u8, &'a [u8]);

/// The next option of IPv4 (RFC 791 section 3.1) or TCP (RFC 9293 section 3.1): type 0 ends the list, type 1 is
/// a lone byte, all others have a length that counts type and length.
pub(super) fn next_option<'a>(
    layer: Layer,
    bytes: &mut &'a [u8],
    at: &mut usize,
) -> Option<Result<TypeAndData<'a>, WireError>> {
    let (kind, len) = match **bytes {
        [] | [0, ..] => return None,
        [1, ..] => (1, 1),
        [kind, len, ..] if len >= 2 => (kind, len as usize),
        [_, len, ..] => {
            *bytes = &[];
            return Some(Err(WireError::new(layer, Problem::LengthTooSmall, *at, 2, len as usize)));
        }
        [_] => {
            *bytes = &[];
            return Some(Err(WireError::truncated(layer, *at, 2, 1)));
        }
    };
    let Some((option, rest)) = bytes.split_at_checked(len) else {
        let had = bytes.len();
        *bytes = &[];
        return Some(Err(WireError::new(layer, Problem::LengthTooLarge, *at, had, len)));
    };
    *bytes = rest;
    *at += len;
    Some(Ok((kind, range(option, 2, len))))
}
