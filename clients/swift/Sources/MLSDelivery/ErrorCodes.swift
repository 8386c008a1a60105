/// An error of this package. Tell errors apart by `code`: it never changes. The TypeScript client has the same ones.
/// clients/swift/README.md lists them.
public protocol CodedError: Error, Sendable {
    var code: String { get }
}

extension ServiceError: CodedError { public var code: String { "Xrpc" } }
extension NoAnswer: CodedError { public var code: String { "NoAnswer" } }
extension InvalidInput: CodedError { public var code: String { "InvalidInput" } }
extension AccountAway: CodedError { public var code: String { "AccountAway" } }
extension UnknownDevices: CodedError { public var code: String { "UnknownDevice" } }
extension ContraryGroup: CodedError { public var code: String { "Contrary" } }
extension StoreOpenError: CodedError { public var code: String { "StoreOpen" } }
extension OwnDeviceError: CodedError { public var code: String { "OwnDevice" } }
extension SignedOut: CodedError { public var code: String { "SignedOut" } }
extension StorageError: CodedError { public var code: String { "Store" } }
extension FileChanged: CodedError { public var code: String { "FileChanged" } }
extension FileCipherError: CodedError { public var code: String { "FileCipher" } }
extension HistoryError: CodedError { public var code: String { "History" } }
extension CodeError: CodedError { public var code: String { "Code" } }

extension MessengerError: CodedError {
    public var code: String {
        switch self {
        case .unknownConvo: "UnknownConvo"
        case .forked, .gap: "OutOfStep"
        case .unreadable: "Stuck"
        case .needsInvitation: "WelcomeLost"
        case .moved: "Moved"
        case .noKeyPackage: "NoKeyPackage"
        case .notAt: "NotAt"
        case .noWay: "NoWay"
        case .waitsForAnswer: "WaitsForAnswer"
        }
    }
}
