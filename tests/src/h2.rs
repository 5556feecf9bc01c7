//! HTTP/2 as raw frames (RFC 9113), for clients that behave as no HTTP library does.

use tokio::io::{AsyncRead, AsyncReadExt as _};

/// The type of a DATA frame.
pub const DATA: u8 = 0;
/// The type of a HEADERS frame.
pub const HEADERS: u8 = 1;
/// The type of an `RST_STREAM` frame.
pub const RST_STREAM: u8 = 3;
/// The type of a SETTINGS frame.
pub const SETTINGS: u8 = 4;
/// The type of a PING frame.
pub const PING: u8 = 6;
/// The type of a GOAWAY frame.
pub const GOAWAY: u8 = 7;
/// The type of a frame that lets the server send more.
pub const WINDOW_UPDATE: u8 = 8;

/// The flag of a frame after which the client sends nothing more in the stream.
pub const END_STREAM: u8 = 1;
/// The flag of a SETTINGS or PING frame that acknowledges a frame of the peer.
pub const ACK: u8 = 1;
/// The flag of a HEADERS frame that contains all fields.
pub const END_HEADERS: u8 = 4;

/// Header fields of `GET https://x/` (RFC 7541): three entries of the static table, and 0x41 for the authority with its value.
pub const GET_FIELDS: &[u8] = &[0x82, 0x87, 0x84, 0x41, 1, b'x'];

/// Header fields of `POST https://x/`.
pub const POST_FIELDS: &[u8] = &[0x83, 0x87, 0x84, 0x41, 1, b'x'];

/// A frame that the server sent.
#[derive(Debug)]
pub struct Frame {
    /// The type.
    pub kind: u8,
    /// The stream; 0 for the connection.
    pub stream: u32,
    /// The content.
    pub payload: Vec<u8>,
}

/// The first bytes of a connection: the preface, and SETTINGS with these ids and values.
pub fn opening(settings: &[(u16, u32)]) -> Vec<u8> {
    let encode = |(id, value): &(u16, u32)| [&id.to_be_bytes()[..], &value.to_be_bytes()].concat();
    let settings: Vec<u8> = settings.iter().flat_map(encode).collect();
    [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".as_slice(), &frame(SETTINGS, 0, 0, &settings)].concat()
}

/// The id of the setting for the initial window of a stream: how many bytes of a response the client takes.
pub const INITIAL_WINDOW_SIZE: u16 = 4;

/// The bytes of a frame (RFC 9113, section 4.1).
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("the payload is short").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A request without a body. 0x02 is the method and 0x04 the path, each with its value; the rest is as in [`GET_FIELDS`].
pub fn request(stream: u32, method: &str, path: &str) -> Vec<u8> {
    let fields = [&[0x02], &text(method)[..], &[0x87, 0x04], &text(path), &[0x41, 1, b'x']].concat();
    frame(HEADERS, END_STREAM | END_HEADERS, stream, &fields)
}

/// The head of a call of a gRPC method, whose message must follow.
pub fn grpc_call(stream: u32, path: &str) -> Vec<u8> {
    // The static table of HPACK has `content-type` at 31.
    let content_type = [&[0x0f, 0x10], &text("application/grpc")[..]].concat();
    let fields = [&[0x83, 0x86, 0x04], &text(path)[..], &[0x41, 1, b'x'], &content_type].concat();
    frame(HEADERS, END_HEADERS, stream, &fields)
}

/// A name or value of a header field (RFC 7541), without compression.
pub fn text(text: &str) -> Vec<u8> {
    [&[u8::try_from(text.len()).expect("the text is short")], text.as_bytes()].concat()
}

/// Reads the next frame. Fails if the server has closed the connection.
pub async fn read_frame(stream: &mut (impl AsyncRead + Unpin)) -> std::io::Result<Frame> {
    let mut head = [0; 9];
    stream.read_exact(&mut head).await?;
    let [l0, l1, l2, kind, _flags, s0, s1, s2, s3] = head;
    let mut payload = vec![0; usize::try_from(u32::from_be_bytes([0, l0, l1, l2])).expect("24 bits")];
    stream.read_exact(&mut payload).await?;
    Ok(Frame { kind, stream: u32::from_be_bytes([s0, s1, s2, s3]), payload })
}
