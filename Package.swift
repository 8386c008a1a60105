// swift-tools-version: 6.0
import PackageDescription

// The Swift client, for apps that depend on this repository: its manifest must be at the root.
// clients/swift has the manifest with the tests.
let package = Package(
    name: "mlsd",
    platforms: [.iOS(.v16), .macOS(.v13)],
    products: [
        .library(name: "MLSDelivery", targets: ["MLSDelivery"]),
        .library(name: "MLSDeliveryDev", targets: ["MLSDeliveryDev"]),
    ],
    targets: [
        .target(name: "MLSDelivery", path: "clients/swift/Sources/MLSDelivery"),
        .target(name: "MLSDeliveryDev", dependencies: ["MLSDelivery"], path: "clients/swift/Sources/MLSDeliveryDev"),
    ]
)
