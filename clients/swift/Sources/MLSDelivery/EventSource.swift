import Foundation

/// An event of the stream, with the id to go on behind it.
struct StreamedEvent: Sendable {
    var id: String?
    var event: StreamConvoEvents.Event
}

/// Reads server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html) from pieces
/// of bytes.
struct EventParser {
    /// The longest event, in bytes. The service's longest message takes 14 MiB in base64.
    static let longest = 32 << 20

    private var line: [UInt8] = []
    private var size = 0
    private var name = ""
    private var data: [String] = []
    private var id: String?
    /// Milliseconds after which the service wants the client to connect again.
    private(set) var retry: Int?

    /// Whether an event is longer than is allowed.
    var overflown: Bool { size > Self.longest }

    /// Takes a piece and returns the events that it completes: name, data and id.
    mutating func take(_ piece: Data) -> [(name: String, data: Data, id: String?)] {
        var events: [(name: String, data: Data, id: String?)] = []
        for byte in piece {
            if byte != UInt8(ascii: "\n") {
                line.append(byte)
                size += 1
                continue
            }
            if line.last == UInt8(ascii: "\r") { line.removeLast() }
            if line.isEmpty {
                if !data.isEmpty { events.append((name, Data(data.joined(separator: "\n").utf8), id)) }
                (name, data, id, size) = ("", [], nil, 0)
            } else {
                field(String(decoding: line, as: UTF8.self))
            }
            line.removeAll(keepingCapacity: true)
        }
        return events
    }

    private mutating func field(_ line: String) {
        let parts = line.split(separator: ":", maxSplits: 1, omittingEmptySubsequences: false)
        var value = parts.count > 1 ? String(parts[1]) : ""
        if value.hasPrefix(" ") { value.removeFirst() }
        switch parts[0] {
        case "event": name = value
        case "data": data.append(value)
        case "id": id = value
        case "retry": retry = Int(value)
        default: break // a comment, or a field of a later version
        }
    }
}

/// The stream of events, over all its connections: it connects again, with jitter, behind the last event.
struct EventSource: Sendable {
    let service: Service
    let surroundings: Surroundings
    let waits: Waits

    /// Reads until the task is cancelled. `cursor` is where to begin; nil: with the next event. `opened` is
    /// called for each connection, `take` for each event; only after it has returned does the next
    /// connection begin behind the event. Error: what repeating does not help with.
    func read(
        from cursor: String?, opened: @Sendable () async throws -> Void, take: @Sendable (StreamedEvent) async throws -> Void
    ) async throws {
        var cursor = cursor
        var failures = 0
        while !Task.isCancelled {
            var parser = EventParser()
            var cause: any Error = NoAnswer(CancellationError())
            do {
                let pieces = try await service.open(StreamConvoEvents.self, .init(cursor: cursor))
                try await opened()
                for try await piece in pieces {
                    for (name, data, id) in parser.take(piece) {
                        guard let event = try? StreamConvoEvents.Event(name: name, data: data) else { continue }
                        try await take(StreamedEvent(id: id, event: event))
                        cursor = id ?? cursor
                        failures = 0
                    }
                    if parser.overflown { throw NoAnswer(URLError(.dataLengthExceedsMaximum)) }
                }
            } catch let error as ServiceError where error.name == .futureCursor {
                cursor = nil
                try await take(StreamedEvent(id: nil, event: .infoEvent(.init(cursor: "", info: "OutdatedCursor"))))
            } catch let error as ServiceError where RetryRule.verdict(on: error) != .again {
                throw error
            } catch { cause = error }
            if Task.isCancelled { return }
            let asked = min(Double(parser.retry ?? 0) / 1000, 3600)
            try await waits.pause(max(asked, surroundings.backoff(after: failures, cause)), after: cause)
            failures += 1
        }
    }
}
