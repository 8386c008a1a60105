// swift-tools-version: 6.0
import PackageDescription

let package = Package(
    name: "MLSDelivery",
    platforms: [.iOS(.v16), .macOS(.v13)],
    products: [
        .library(name: "MLSDelivery", targets: ["MLSDelivery"]),
        .library(name: "MLSDeliveryDev", targets: ["MLSDeliveryDev"]),
    ],
    targets: [
        .target(name: "MLSDelivery"),
        .target(name: "MLSDeliveryDev", dependencies: ["MLSDelivery"]),
        .target(name: "TestSupport", dependencies: ["MLSDelivery", "MLSDeliveryDev"], path: "Tests/TestSupport"),
        .executableTarget(name: "phone", dependencies: ["MLSDelivery", "TestSupport"], path: "Tests/Phone"),
        .testTarget(name: "MLSDeliveryTests", dependencies: ["MLSDelivery", "MLSDeliveryDev", "TestSupport", "phone"]),
    ]
)
