import Foundation
import MLSDelivery
import TestSupport

try await runPhone(CommandLine.arguments)
