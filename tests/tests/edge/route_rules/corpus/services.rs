//! Services that normalize paths in different ways, and that answer `protected` for the protected paths.
//!
//! The protected paths are `/admin`, all paths below it, and `/users/{id}/keys`. nginx is the real program. The other
//! services are models, because a developer may have no Java and no Windows.

use countersign_tests::Nginx;
use std::path::Path;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

/// Starts nginx, which merges slashes, decodes once and resolves dots before it selects a location.
pub async fn start_nginx() -> Nginx {
    let site = |listen: &str, _: &Path| {
        let protected = "{ return 200 protected; }";
        format!(
            "keepalive_requests 1000000;\nserver {{\nlisten {listen};\n\
             location = /admin {protected}\nlocation /admin/ {protected}\n\
             location ~ ^/users/[^/]+/keys/?$ {protected}\nlocation / {{ return 200 open; }}\n}}"
        )
    };
    Nginx::start(site).await
}

/// How a model of a service normalizes a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Model {
    /// Tomcat 10.1 with the default settings of its connector.
    ///
    /// The sources are `CoyoteAdapter` (`postParseRequest`, `parsePathParameters`, `normalize`), `UDecoder` and
    /// `HttpParser`, and <https://tomcat.apache.org/tomcat-10.1-doc/config/http.html>. Tomcat refuses characters that
    /// RFC 3986 does not allow in a path. It removes the parameter of each segment and then decodes once. It refuses an
    /// encoded slash, a backslash, a null byte and invalid encodings (`encodedSolidusHandling`,
    /// `allowBackslash`). It merges slashes and resolves dots, and refuses a path above the root.
    ///
    /// Tomcat 10.1.60 of Debian 12 and this model give the same answers to all targets of the corpus, apart from absolute
    /// URLs (`GET http://…`), which Envoy does not forward.
    Tomcat,
    /// A service that refuses nothing: it removes parameters before and after it decodes, takes backslashes for slashes,
    /// merges slashes, and resolves dots up to the root.
    Lenient,
    /// A lenient service that ignores case, as services on Windows do.
    Folding,
    /// A service that splits the path into segments before it decodes them, so that an encoded slash is a character of its segment.
    /// Go (`net/http.ServeMux`) and Express do this.
    Segments,
    /// A service with a handler for each first segment, which it does not decode. The handler decodes the rest of the path, and then splits
    /// it.
    Mounted,
}

impl Model {
    /// Starts a service, and returns its port.
    pub async fn start(self) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(self.serve(stream));
            }
        });
        port
    }

    async fn serve(self, mut stream: TcpStream) {
        let mut bytes = Vec::new();
        while stream.read_buf(&mut bytes).await.is_ok_and(|read| read > 0) {
            // Requests have no body.
            if !bytes.ends_with(b"\r\n\r\n") {
                continue;
            }
            let body = self.answer(bytes.split(|byte| *byte == b' ').nth(1).unwrap_or_default());
            let status = if body == "refused" { "400 Bad Request" } else { "200 OK" };
            let response = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
            if stream.write_all(response.as_bytes()).await.is_err() {
                return;
            }
            bytes.clear();
        }
    }

    /// What the service serves for a request target: `protected`, `open` or `refused`.
    pub fn answer(self, target: &[u8]) -> &'static str {
        let path = target.split(|byte| matches!(byte, b'?' | b'#')).next().unwrap_or_default();
        let segments = match self {
            Self::Tomcat => tomcat(target, path),
            Self::Lenient => lenient(path),
            Self::Folding => lenient(path).map(|it| it.iter().map(|segment| segment.to_lowercase()).collect()),
            Self::Segments => segments(path),
            Self::Mounted => mounted(path),
        };
        let Some(segments) = segments else { return "refused" };
        match segments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
            ["admin", ..] | ["users", _, "keys"] => "protected",
            _ => "open",
        }
    }
}

fn tomcat(target: &[u8], path: &[u8]) -> Option<Vec<String>> {
    let is_forbidden = |byte: u8| !byte.is_ascii_graphic() || b"\"#<>[\\]^`{|}".contains(&byte);
    if target.iter().copied().any(is_forbidden) || !path.starts_with(b"/") {
        return None;
    }
    let parameterless = without_parameters(path);
    if parameterless.windows(3).any(|it| it.eq_ignore_ascii_case(b"%2f")) {
        return None;
    }
    let decoded = decode(&parameterless, Invalid::Refused)?;
    if decoded.iter().any(|byte| matches!(byte, b'\\' | 0)) {
        return None;
    }
    let mut segments: Vec<&[u8]> = Vec::new();
    for segment in decoded.split(|byte| *byte == b'/') {
        match segment {
            b"" | b"." => {}
            b".." => drop(segments.pop()?),
            segment => segments.push(segment),
        }
    }
    segments.into_iter().map(|segment| String::from_utf8(segment.to_vec()).ok()).collect()
}

fn lenient(path: &[u8]) -> Option<Vec<String>> {
    let slashes = |path: &[u8]| path.iter().map(|byte| if *byte == b'\\' { b'/' } else { *byte }).collect::<Vec<_>>();
    let decoded = slashes(&decode(&without_parameters(&slashes(path)), Invalid::Kept)?);
    let text = String::from_utf8_lossy(&without_parameters(&decoded)).into_owned();
    let mut segments = Vec::new();
    for segment in text.split('/') {
        match segment {
            "" | "." => {}
            ".." => drop(segments.pop()),
            segment => segments.push(segment.to_owned()),
        }
    }
    Some(segments)
}

fn segments(path: &[u8]) -> Option<Vec<String>> {
    let segments = path.split(|byte| *byte == b'/').filter(|segment| !segment.is_empty());
    segments.map(|segment| String::from_utf8(decode(segment, Invalid::Refused)?).ok()).collect()
}

fn mounted(path: &[u8]) -> Option<Vec<String>> {
    let path = path.strip_prefix(b"/")?;
    let end = path.iter().position(|byte| *byte == b'/').unwrap_or(path.len());
    let (first, rest) = path.split_at(end);
    Some(segments(first)?.into_iter().chain(lenient(rest)?).collect())
}

fn without_parameters(path: &[u8]) -> Vec<u8> {
    let segments = path.split(|byte| *byte == b'/');
    let names: Vec<_> = segments.map(|it| it.split(|byte| *byte == b';').next().unwrap_or_default()).collect();
    names.join(&b'/')
}

/// What a service does with `%` without two hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Invalid {
    Refused,
    Kept,
}

fn decode(path: &[u8], invalid: Invalid) -> Option<Vec<u8>> {
    let (mut decoded, mut index) = (Vec::new(), 0);
    while let Some(byte) = path.get(index) {
        let digit = |at: usize| path.get(at).and_then(|digit| char::from(*digit).to_digit(16));
        let digits = digit(index + 1).zip(digit(index + 2)).filter(|_| *byte == b'%');
        if let Some((high, low)) = digits {
            decoded.push(u8::try_from(high * 16 + low).unwrap());
            index += 3;
            continue;
        }
        if *byte == b'%' && invalid == Invalid::Refused {
            return None;
        }
        decoded.push(*byte);
        index += 1;
    }
    Some(decoded)
}
