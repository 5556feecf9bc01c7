//! Sends prepared gRPC messages over HTTP/2 and counts the responses. It encodes nothing while it measures, so that the server is
//! the bottleneck.

use crate::servers::seconds_since;
use countersign_process::{Clock, SystemClock};
use countersign_tests::{
    h2::{
        ACK, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PING, RST_STREAM, SETTINGS, WINDOW_UPDATE, frame, opening,
        text,
    },
    quantiles::sorted,
};
use std::{cell::RefCell, path::Path, rc::Rc, time::Duration};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
};

/// Number of connections: an Envoy with this number of worker threads opens as many.
const CONNECTIONS: usize = 4;

/// Number of requests in progress on each connection.
const IN_PROGRESS: usize = 16;

/// The largest number of requests in progress on a connection when requests arrive at fixed times. Further requests wait in the
/// client, and the time of their wait counts too. A sidecar refuses more than 1,024.
const MAX_IN_PROGRESS: usize = 512;

/// The flow-control window of the client for a connection and for each stream.
const WINDOW: u32 = (1 << 31) - 1;

/// After this number of received bytes, the client lets the server send as many more on the connection.
const WINDOW_STEP: u32 = 1 << 24;

const FRAME_HEAD: usize = 9;

/// The length of the prefix of a gRPC message.
const PREFIX: usize = 5;

/// How a `CheckResponse` that allows a request begins: with an empty status.
const ALLOWED: [u8; 2] = [0x0a, 0];

/// Messages in the order in which they are sent, again and again.
pub struct Messages {
    /// Encoded requests.
    pub encoded: Rc<Vec<Vec<u8>>>,
    /// Places in `encoded`.
    pub order: Vec<u32>,
    next: usize,
}

impl Messages {
    pub fn new(encoded: Vec<Vec<u8>>, order: Vec<u32>) -> Self {
        Self { encoded: Rc::new(encoded), order, next: 0 }
    }

    /// The same messages from the beginning.
    pub fn rewound(&self) -> Self {
        Self { encoded: Rc::clone(&self.encoded), order: self.order.clone(), next: 0 }
    }

    /// How many messages were sent.
    pub const fn sent(&self) -> usize {
        self.next
    }

    fn next(&mut self) -> &[u8] {
        let place = self.order[self.next % self.order.len()];
        self.next += 1;
        &self.encoded[place as usize]
    }
}

/// What was measured.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counted {
    pub answered: u64,
    pub allowed: u64,
    pub per_second: f64,
}

/// When requests arrive.
#[derive(Debug, Clone, Copy)]
pub struct Arrivals {
    pub per_second: f64,
    pub time: Duration,
}

/// Connections to a server.
pub struct Replay(Vec<Connection>);

impl Replay {
    pub async fn connect(socket: &Path) -> Self {
        let mut connections = Vec::new();
        for _ in 0..CONNECTIONS {
            connections.push(Connection::open(socket).await);
        }
        Self(connections)
    }

    /// Sends each message once, so that the server has seen it before the measurement.
    pub async fn send_each_once(&mut self, messages: &Messages) {
        let count = messages.encoded.len();
        let each = Messages { order: (0..count as u32).collect(), ..messages.rewound() };
        let each = RefCell::new(each);
        let goes_on = || each.borrow().next < count;
        let drives = self.0.iter_mut().map(|connection| connection.drive(&each, &goes_on));
        futures_util::future::join_all(drives).await;
    }

    /// Sends messages for a time, then waits for the last responses.
    pub async fn run(&mut self, messages: &RefCell<Messages>, time: Duration) -> Counted {
        let started = SystemClock.since_boot();
        let goes_on = || SystemClock.since_boot() < started + time;
        let drives = self.0.iter_mut().map(|connection| connection.drive(messages, &goes_on));
        let counts = futures_util::future::join_all(drives).await;
        let elapsed = seconds_since(started);
        let (answered, allowed) = counts.iter().fold((0, 0), |(a, b), (answered, allowed)| (a + answered, b + allowed));
        Counted { answered, allowed, per_second: answered as f64 / elapsed }
    }

    /// Sends requests at fixed times, in turn over all connections. Returns the microseconds from the intended times to the
    /// responses, in ascending order.
    pub async fn arrive(&mut self, messages: &RefCell<Messages>, arrivals: Arrivals) -> Vec<f64> {
        let interval = CONNECTIONS as f64 / arrivals.per_second;
        let started = SystemClock.since_boot();
        let drives = self.0.iter_mut().enumerate().map(|(number, connection)| {
            let first = started + Duration::from_secs_f64(interval * number as f64 / CONNECTIONS as f64);
            connection.arrive(messages, (first, Duration::from_secs_f64(interval)), started + arrivals.time)
        });
        sorted(futures_util::future::join_all(drives).await.concat())
    }
}

struct Connection {
    stream: UnixStream,
    next_stream: u32,
    /// The head of the next request: at first with the fields, later with their numbers in the connection's table (RFC 7541).
    head: Vec<u8>,
    received: Vec<u8>,
    outgoing: Vec<u8>,
    /// Number of received bytes for which the client has not opened the window again yet.
    consumed: u32,
}

impl Connection {
    async fn open(socket: &Path) -> Self {
        let mut stream = UnixStream::connect(socket).await.expect("the server listens");
        let window = frame(WINDOW_UPDATE, 0, 0, &(WINDOW - 65_535).to_be_bytes());
        let opening = opening(&[(countersign_tests::h2::INITIAL_WINDOW_SIZE, WINDOW)]);
        stream.write_all(&[opening, window].concat()).await.expect("the server reads");
        let fields = [
            vec![0x83, 0x86, 0x44],
            text("/envoy.service.auth.v3.Authorization/Check"),
            vec![0x41],
            text("ext_authz"),
            vec![0x5f],
            text("application/grpc"),
            vec![0x40],
            text("te"),
            text("trailers"),
        ];
        let (received, outgoing) = (Vec::with_capacity(1 << 18), Vec::with_capacity(1 << 18));
        Self { stream, next_stream: 1, head: fields.concat(), received, outgoing, consumed: 0 }
    }

    fn send(&mut self, message: &[u8]) {
        let length = u32::try_from(message.len()).unwrap();
        self.outgoing.extend(frame(HEADERS, END_HEADERS, self.next_stream, &self.head));
        let [_, length_bytes @ ..] = (length + PREFIX as u32).to_be_bytes();
        self.outgoing.extend(length_bytes);
        self.outgoing.extend([DATA, END_STREAM]);
        self.outgoing.extend(self.next_stream.to_be_bytes());
        self.outgoing.push(0);
        self.outgoing.extend(length.to_be_bytes());
        self.outgoing.extend(message);
        self.next_stream += 2;
        if self.head.len() > 6 {
            self.head = vec![0x83, 0x86, 0xc1, 0xc0, 0xbf, 0xbe];
        }
    }

    /// Sends messages while `goes_on`. Returns the number of all responses, and of the responses that allow the request.
    async fn drive(&mut self, messages: &RefCell<Messages>, goes_on: &impl Fn() -> bool) -> (u64, u64) {
        let (mut answered, mut allowed, mut sent) = (0, 0, 0);
        for _ in 0..IN_PROGRESS {
            self.send(messages.borrow_mut().next());
            sent += 1;
        }
        while answered < sent {
            self.stream.write_all(&self.outgoing).await.expect("the server reads");
            self.outgoing.clear();
            let read = self.stream.read_buf(&mut self.received).await.expect("the server writes");
            assert!(read > 0, "the server has closed the connection");
            let before = answered;
            let (ended, allows) = self.take_frames();
            answered += ended.len() as u64;
            allowed += allows;
            if goes_on() {
                for _ in before..answered {
                    self.send(messages.borrow_mut().next());
                    sent += 1;
                }
            }
        }
        (answered, allowed)
    }

    /// Sends a request at each intended time. Returns, for each response, the microseconds from the intended time of its request.
    async fn arrive(&mut self, messages: &RefCell<Messages>, times: (Duration, Duration), end: Duration) -> Vec<f64> {
        let (mut next, interval) = times;
        let (first_stream, first_time) = (self.next_stream, next);
        let (mut micros, mut sent) = (Vec::new(), 0);
        let mut allowed = 0;
        while next < end || micros.len() < sent {
            while next <= SystemClock.since_boot() && next < end && sent - micros.len() < MAX_IN_PROGRESS {
                self.send(messages.borrow_mut().next());
                sent += 1;
                next += interval;
            }
            self.stream.write_all(&self.outgoing).await.expect("the server reads");
            self.outgoing.clear();
            // Yield instead of a sleep, which would end up to a millisecond late.
            tokio::task::yield_now().await;
            match self.stream.try_read_buf(&mut self.received) {
                Ok(read) => assert!(read > 0, "the server has closed the connection"),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => continue,
                Err(error) => panic!("{error}"),
            }
            let now = SystemClock.since_boot();
            let (ended, newly_allowed) = self.take_frames();
            allowed += newly_allowed;
            for stream in ended {
                let intended = first_time + interval * ((stream - first_stream) / 2);
                micros.push((now.saturating_sub(intended)).as_secs_f64() * 1e6);
            }
        }
        assert_eq!(allowed, sent as u64, "all checks are allowed");
        micros
    }

    /// Handles the complete frames that have arrived. Returns the ended streams, and how many responses allow the request.
    fn take_frames(&mut self) -> (Vec<u32>, u64) {
        let (mut ended, mut allowed, mut place) = (Vec::new(), 0, 0);
        while let Some([l0, l1, l2, kind, flags, s0, s1, s2, s3]) = self.received.get(place..place + FRAME_HEAD) {
            let stream = u32::from_be_bytes([*s0, *s1, *s2, *s3]);
            let length = u32::from_be_bytes([0, *l0, *l1, *l2]);
            let (kind, flags, start) = (*kind, *flags, place + FRAME_HEAD);
            let Some(payload) = self.received.get(start..start + length as usize) else { break };
            place = start + length as usize;
            match kind {
                DATA => {
                    self.consumed += length;
                    allowed += u64::from(payload.get(PREFIX..PREFIX + 2) == Some(&ALLOWED[..]));
                }
                SETTINGS if flags & ACK == 0 => self.outgoing.extend(frame(SETTINGS, ACK, 0, &[])),
                PING if flags & ACK == 0 => self.outgoing.extend(frame(PING, ACK, 0, payload)),
                GOAWAY => panic!("the server closes the connection"),
                RST_STREAM => panic!("the server refuses a request"),
                _ => {}
            }
            if (kind == HEADERS || kind == DATA) && flags & END_STREAM != 0 {
                ended.push(stream);
            }
        }
        self.received.drain(..place);
        if self.consumed > WINDOW_STEP {
            self.outgoing.extend(frame(WINDOW_UPDATE, 0, 0, &self.consumed.to_be_bytes()));
            self.consumed = 0;
        }
        (ended, allowed)
    }
}
