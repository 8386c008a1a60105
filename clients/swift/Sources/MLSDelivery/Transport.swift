import Foundation
#if canImport(FoundationNetworking)
    import FoundationNetworking
#endif

/// An HTTP request.
public struct Request: Sendable {
    public var method: String
    public var url: URL
    public var headers: [String: String]
    public var body: Data?

    public init(method: String, url: URL, headers: [String: String] = [:], body: Data? = nil) {
        (self.method, self.url, self.headers, self.body) = (method, url, headers, body)
    }
}

/// An HTTP answer. Names of headers are in lower case.
public struct Answer: Sendable {
    public var status: Int
    public var headers: [String: String]
    public var body: Data

    public init(status: Int, headers: [String: String] = [:], body: Data = Data()) {
        self.status = status
        self.headers = headers
        self.body = body
    }
}

/// What carries requests. An error means that there was no answer.
public protocol Transport: Sendable {
    func send(_ request: Request) async throws -> Answer
    /// Opens an answer without end. Its pieces come as they arrive; `body` of the answer is empty.
    /// An answer whose status is no 2xx comes whole, with its body and without pieces.
    func open(_ request: Request) async throws -> (Answer, AsyncThrowingStream<Data, any Error>)
}

/// Carries requests with URLSession.
///
/// A session without a cache and without cookies is made for it. Pieces of an open answer come by
/// the delegate, because FoundationNetworking has no `bytes(for:)`.
public final class URLSessionTransport: Transport {
    /// The longest time without a byte, in seconds. The service sends a comment every 15 seconds on an
    /// open stream.
    public static let silence: TimeInterval = 45

    /// So much is read of an answer that is no stream, because its status is no 2xx, in bytes.
    private static let mostRefusal = 64 << 10

    private let session: URLSession
    private let delegate = Delegate()

    public init(configuration: URLSessionConfiguration = .ephemeral) {
        configuration.timeoutIntervalForRequest = Self.silence
        session = URLSession(configuration: configuration, delegate: delegate, delegateQueue: nil)
    }

    deinit { session.invalidateAndCancel() }

    public func send(_ request: Request) async throws -> Answer {
        var (answer, pieces) = try await start(request)
        for try await piece in pieces { answer.body += piece }
        return answer
    }

    public func open(_ request: Request) async throws -> (Answer, AsyncThrowingStream<Data, any Error>) {
        var (answer, pieces) = try await start(request)
        if !(200..<300).contains(answer.status) {
            for try await piece in pieces where answer.body.count < Self.mostRefusal { answer.body += piece }
        }
        return (answer, pieces)
    }

    private func start(_ request: Request) async throws -> (Answer, AsyncThrowingStream<Data, any Error>) {
        var http = URLRequest(url: request.url)
        http.httpMethod = request.method
        http.httpBody = request.body
        http.cachePolicy = .reloadIgnoringLocalCacheData
        for (name, value) in request.headers { http.setValue(value, forHTTPHeaderField: name) }
        let task = session.dataTask(with: http)
        return try await withTaskCancellationHandler {
            try await delegate.start(task)
        } onCancel: {
            task.cancel()
        }
    }

    /// Hands what URLSession reports to the calls that wait for it.
    private final class Delegate: NSObject, URLSessionDataDelegate, @unchecked Sendable {
        private typealias Pieces = AsyncThrowingStream<Data, any Error>

        /// A request that has not ended. `head` waits for the answer's beginning.
        private struct Running {
            var head: CheckedContinuation<(Answer, AsyncThrowingStream<Data, any Error>), any Error>?
            var pieces: Pieces.Continuation?
        }

        /// How many pieces of at most 16 KiB may wait for their reader. The longest answer has 640.
        static let mostPieces = 4096

        private let lock = NSLock() // guards running
        private var running: [Int: Running] = [:]

        func start(_ task: URLSessionDataTask) async throws -> (Answer, AsyncThrowingStream<Data, any Error>) {
            try await withCheckedThrowingContinuation { continuation in
                lock.withLock { running[task.taskIdentifier] = Running(head: continuation) }
                task.resume()
            }
        }

        /// A redirect may not leave TLS.
        func urlSession(
            _ session: URLSession, task: URLSessionTask, willPerformHTTPRedirection response: HTTPURLResponse, newRequest request: URLRequest,
            completionHandler: @escaping (URLRequest?) -> Void
        ) {
            let leavesTLS = task.originalRequest?.url?.scheme == "https" && request.url?.scheme != "https"
            completionHandler(leavesTLS ? nil : request)
        }

        func urlSession(
            _ session: URLSession, dataTask: URLSessionDataTask, didReceive response: URLResponse,
            completionHandler: @escaping (URLSession.ResponseDisposition) -> Void
        ) {
            let (pieces, continuation) = Pieces.makeStream(bufferingPolicy: .bufferingOldest(Self.mostPieces))
            continuation.onTermination = { _ in dataTask.cancel() }
            let head = lock.withLock {
                running[dataTask.taskIdentifier]?.pieces = continuation
                return running[dataTask.taskIdentifier]?.head.take()
            }
            head?.resume(returning: (Answer(response), pieces))
            completionHandler(.allow)
        }

        func urlSession(_ session: URLSession, dataTask: URLSessionDataTask, didReceive data: Data) {
            let pieces = lock.withLock { running[dataTask.taskIdentifier]?.pieces }
            if case .dropped = pieces?.yield(data) {
                pieces?.finish(throwing: URLError(.dataLengthExceedsMaximum))
            }
        }

        func urlSession(_ session: URLSession, task: URLSessionTask, didCompleteWithError error: (any Error)?) {
            let ended = lock.withLock { running.removeValue(forKey: task.taskIdentifier) }
            ended?.head?.resume(throwing: error ?? URLError(.badServerResponse))
            ended?.pieces?.finish(throwing: error)
        }
    }
}

extension Optional {
    fileprivate mutating func take() -> Wrapped? {
        defer { self = nil }
        return self
    }
}

extension Answer {
    fileprivate init(_ response: URLResponse) {
        let http = response as? HTTPURLResponse
        var headers: [String: String] = [:]
        for (name, value) in http?.allHeaderFields ?? [:] {
            if let name = name as? String, let value = value as? String { headers[name.lowercased()] = value }
        }
        self.init(status: http?.statusCode ?? 0, headers: headers)
    }
}
