// swift-tools-version: 6.0
import PackageDescription

let package = Package(
    name: "MLSDelivery",
    platforms: [.iOS(.v16), .macOS(.v13)],
    products: [.library(name: "MLSDelivery", targets: ["MLSDelivery"])],
    targets: [
        .target(name: "MLSDelivery"),
        .target(name: "TestSupport", dependencies: ["MLSDelivery"], path: "Tests/TestSupport"),
        .executableTarget(name: "phone", dependencies: ["MLSDelivery", "TestSupport"], path: "Tests/Phone"),
        .testTarget(name: "MLSDeliveryTests", dependencies: ["MLSDelivery", "TestSupport", "phone"]),
    ]
)
