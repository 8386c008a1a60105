import Foundation

/// What a reader needs of a file. It belongs into the MLS message, and nowhere else: who has it can read the
/// file. docs/clients/ATTACHMENTS.md.
public struct FilePointer: Codable, Hashable, Sendable {
    public var id: String
    /// The AES-256-GCM key and its nonce, base64url.
    public var key: String
    public var nonce: String
    /// The SHA-256 of the ciphertext, in hexadecimal, and its bytes.
    public var sha256: String
    public var size: Int

    public init(id: String, key: String, nonce: String, sha256: String, size: Int) {
        (self.id, self.key, self.nonce, self.sha256, self.size) = (id, key, nonce, sha256, size)
    }

    /// For `embedUri`.
    public var uri: String { "mlsd:attachment/" + id }
}

/// An encrypted file. Keep it until its upload has ended: encrypted again it is another file.
public struct SealedFile: Codable, Hashable, Sendable {
    public var key: String
    public var nonce: String
    public var sha256: String
    public var ciphertext: Data
    /// Names the attempt, for retries. After `InvalidAsset` it needs a new one.
    public var idempotencyKey = newIdempotencyKey()

    /// Encrypts a file under a fresh key. `boundTo` is additional data, without which it does not open. Error:
    /// ``FileCipherError``.
    public init(_ plain: Data, boundTo: Data = Data()) throws {
        let (key, nonce) = (FileCipher.random(FileCipher.keyBytes), FileCipher.random(FileCipher.nonceBytes))
        ciphertext = try FileCipher.seal(plain, key: key, nonce: nonce, boundTo: boundTo)
        (self.key, self.nonce) = (base64url(key), base64url(nonce))
        sha256 = hexadecimal(MLSDelivery.sha256(ciphertext))
    }
}

/// The content is not what its sender has announced: the server or its store has changed it.
public struct FileChanged: Error, Hashable, CustomStringConvertible {
    public var description: String
}

/// Uploads and downloads encrypted files. It repeats what the retry table says until its task is cancelled.
public struct Attachments: Sendable {
    /// How many bytes are read at once: a PDS passes on some 10 MB.
    private static let readAtOnce = 4 << 20
    /// How often an upload is completed whose parts the store loses.
    private static let maxCompletions = 5

    private let service: Service
    private let surroundings: Surroundings
    /// It is called before each attempt, and ends the transfer by an error.
    private let proceed: @Sendable () async throws -> Void

    public init(service: Service, surroundings: Surroundings = .init(), proceed: @escaping @Sendable () async throws -> Void = {}) {
        (self.service, self.surroundings, self.proceed) = (service, surroundings, proceed)
    }

    /// Uploads a file, or goes on with an upload that was cut off: the same sealed file again.
    public func upload(_ file: SealedFile, to convo: String) async throws -> FilePointer {
        let size = file.ciphertext.count
        let input = CreateAttachment.Input(convoId: convo, sha256: file.sha256, size: size, idempotencyKey: file.idempotencyKey)
        let created = try await patiently { try await $0.call(CreateAttachment.self, input) }
        for attempt in 1... {
            try await putMissing(file, created, convo)
            do {
                let input = CompleteAttachment.Input(attachmentId: created.attachmentId, convoId: convo)
                _ = try await patiently { try await $0.call(CompleteAttachment.self, input) }
                break
            } catch let error as ServiceError where error.name.rawValue == "AttachmentIncomplete" && attempt < Self.maxCompletions {
                try await surroundings.sleep(surroundings.backoff(after: attempt, error)) // the store has lost a part
            }
        }
        return FilePointer(id: created.attachmentId, key: file.key, nonce: file.nonce, sha256: file.sha256, size: size)
    }

    private func putMissing(_ file: SealedFile, _ created: CreateAttachment.Output, _ convo: String) async throws {
        let id = created.attachmentId
        let status = try await patiently { try await $0.query(GetAttachmentStatus.self, .init(attachmentId: id, convoId: convo)) }
        guard status.state == .uploading, created.partSize > 0 else { return } // completing says what has become of it
        for part in 1...max(1, status.partCount) where !status.parts.contains(part) {
            let bytes = file.ciphertext.dropFirst((part - 1) * created.partSize).prefix(created.partSize)
            let items = [("convoId", convo), ("attachmentId", id), ("part", String(part))].map(URLQueryItem.init)
            try await patiently { try await $0.put("blue.catbird.mls.putAttachmentPart", items: items, bytes: Data(bytes)) }
        }
    }

    /// Downloads a file, checks it and decrypts it. Errors: ``FileChanged``, and ``ServiceError`` that do not
    /// pass. Who does not trust the pointer compares its size with a bound first.
    public func download(_ pointer: FilePointer, from convo: String, boundTo: Data = Data()) async throws -> Data {
        var ciphertext = Data()
        while ciphertext.count < pointer.size {
            let length = min(Self.readAtOnce, pointer.size - ciphertext.count)
            let items = [("convoId", convo), ("attachmentId", pointer.id), ("offset", String(ciphertext.count)), ("length", String(length))]
            let piece = try await patiently { try await $0.get("blue.catbird.mls.getAttachment", items: items.map(URLQueryItem.init)) }
            guard !piece.isEmpty, piece.count <= length else { throw FileChanged(description: "the attachment has another size") }
            ciphertext += piece
        }
        guard ciphertext.count == pointer.size, hexadecimal(sha256(ciphertext)) == pointer.sha256 else {
            throw FileChanged(description: "the attachment is not the one that was sent")
        }
        guard let key = data(ofBase64url: pointer.key), let nonce = data(ofBase64url: pointer.nonce),
            let plain = try open(ciphertext, key, nonce, boundTo)
        else { throw FileChanged(description: "the attachment cannot be decrypted") }
        return plain
    }

    private func open(_ ciphertext: Data, _ key: Data, _ nonce: Data, _ boundTo: Data) throws -> Data? {
        do { return try FileCipher.open(ciphertext, key: key, nonce: nonce, boundTo: boundTo) } catch FileCipherError.cannotOpen { return nil }
    }

    private func patiently<Output: Sendable>(_ call: @Sendable (Service) async throws -> Output) async throws -> Output {
        var attempts = 0
        while true {
            try Task.checkCancellation()
            try await proceed()
            do { return try await call(service) } catch {
                guard RetryRule.verdict(on: error) == .again else { throw error }
                try await surroundings.sleep(surroundings.backoff(after: attempts, error))
                attempts += 1
            }
        }
    }
}

func base64url(_ data: Data) -> String {
    data.base64EncodedString().replacingOccurrences(of: "+", with: "-").replacingOccurrences(of: "/", with: "_")
        .replacingOccurrences(of: "=", with: "")
}

func data(ofBase64url text: String) -> Data? {
    var standard = text.replacingOccurrences(of: "-", with: "+").replacingOccurrences(of: "_", with: "/")
    while standard.utf8.count % 4 != 0 { standard += "=" }
    return Data(base64Encoded: standard)
}
