import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.file.Files;
import java.nio.file.Path;

/** Sends a file to a URL with the JDK's client as it comes, which offers HTTP/2 (h2c); prints what it hears. */
class Ask {
    public static void main(String[] args) throws Exception {
        var client = HttpClient.newHttpClient();
        var file = Path.of(args[2]);
        HttpRequest.BodyPublisher[] bodies = {
            HttpRequest.BodyPublishers.ofFile(file), // with its length
            HttpRequest.BodyPublishers.ofInputStream(() -> { // in chunks
                try {
                    return Files.newInputStream(file);
                } catch (java.io.IOException error) {
                    throw new java.io.UncheckedIOException(error);
                }
            })
        };
        for (int i = 0; i < 4; i++) {
            var request = HttpRequest.newBuilder(URI.create(args[0]))
                .header("authorization", "Bearer " + args[1])
                .header("content-type", "application/json")
                .POST(bodies[i % 2])
                .build();
            var answer = client.send(request, HttpResponse.BodyHandlers.ofString());
            System.out.println(answer.version() + " " + answer.statusCode() + " " + answer.body().strip());
        }
    }
}
