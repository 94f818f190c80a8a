// Tests how an app handles a Redeploy of vm-0, through the emulator's control API.
// Run it with `java Check.java` (Java 11 or later, no library).
// Start the app first, with FOREWARN_ENDPOINT set. FOREWARN_SERVER is the emulator's operator port.
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

public class Check {
    static final String SERVER = System.getenv().getOrDefault("FOREWARN_SERVER", "http://127.0.0.1:8170");
    static final HttpClient CLIENT = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();

    static String post(String path, String body) throws Exception {
        HttpRequest.Builder request = HttpRequest.newBuilder(URI.create(SERVER + path))
                .header("Content-Type", "application/json")
                .POST(HttpRequest.BodyPublishers.ofString(body));
        String token = System.getenv("FOREWARN_TOKEN");
        if (token != null) request.header("Authorization", "Bearer " + token);
        HttpResponse<String> response = CLIENT.send(request.build(), HttpResponse.BodyHandlers.ofString());
        // A failed expectation answers 409, with the reason and the timeline.
        if (response.statusCode() >= 400) throw new AssertionError(response.body());
        return response.body();
    }

    static void expect(String what) throws Exception {
        post("/v1/emulator/expect", what);
    }

    public static void main(String[] arguments) throws Exception {
        String maintenance = post("/v1/maintenances", "{\"type\": \"Redeploy\", \"targets\": {\"machines\": [\"vm-0\"]}}");
        // With a JSON library: waves[0].events[0].id
        Matcher id = Pattern.compile("\"events\":\\[\\{\"id\":\"([0-9A-F-]{36})\"").matcher(maintenance);
        if (!id.find()) throw new AssertionError(maintenance);
        String event = id.group(1);
        expect("{\"what\": \"seen\", \"event\": \"" + event + "\", \"machine\": \"vm-0\", \"within_s\": 10}");
        post("/v1/clock/advance", "{\"seconds\": 120}");
        expect("{\"what\": \"approval\", \"event\": \"" + event + "\", \"machine\": \"vm-0\", \"times\": 1, \"within_s\": 10}");
        expect("{\"what\": \"seen\", \"event\": \"" + event + "\", \"machine\": \"vm-0\", \"status\": \"Started\", \"within_s\": 10}");
        post("/v1/orders/" + event + "/finish", "{}");
        expect("{\"what\": \"no-more\"}");
        System.out.println("vm-0 saw the Redeploy, approved it once, and saw it start");
    }
}
