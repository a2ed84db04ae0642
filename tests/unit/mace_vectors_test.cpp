// The models M1 and M2 of operators.md 3.9, with parameters everybody can compute, against the numbers of the package.
#include <gtest/gtest.h>

#include "support/mace_models.hpp"

namespace fastpath::test {
namespace {

// Energies are sums of a few terms of order 1 (M2: 10), forces sums over a few edges.
constexpr double kRounding = 1e-12;

std::shared_ptr<Model> m1() {
  static const auto model = filled_model(m1_config());
  return model;
}
std::shared_ptr<Model> m2() {
  static const auto model = filled_model(m2_config());
  return model;
}
EvaluationResult run(Model& model, const Structure& structure) { return model.evaluate(structure, reference()); }

std::vector<double> force(const EvaluationResult& result, std::size_t atom) {
  const std::vector<double> all = reals(result.forces);
  return {all.begin() + static_cast<std::ptrdiff_t>(3 * atom), all.begin() + static_cast<std::ptrdiff_t>(3 * atom + 3)};
}
void expect_energy(double energy, double want) { EXPECT_NEAR(energy, want, kRounding * std::abs(want)); }
void expect_close(const std::vector<double>& values, const std::vector<double>& want, double tolerance = kRounding) {
  EXPECT_LE(relative_error(values, want), tolerance);
}

/// Sum and sum of squares of a slot's columns low..high-1 in the last evaluation.
struct Moments {
  double sum = 0, squares = 0, absolute = 0;
};
Moments moments(const std::vector<double>& values) {
  Moments m;
  for (const double value : values) m.sum += value, m.squares += value * value, m.absolute += std::abs(value);
  return m;
}
std::vector<double> slot(Model& model, const std::string& name) {
  const Tensor tensor = dynamic_cast<models::MaceModel&>(model).last_value(name);
  EXPECT_TRUE(tensor.defined()) << name;
  return tensor.defined() ? reals(tensor) : std::vector<double>{};
}
std::vector<double> columns(const std::vector<double>& rows, std::size_t width, std::size_t low, std::size_t high) {
  std::vector<double> result;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (i % width >= low && i % width < high) result.push_back(rows[i]);
  }
  return result;
}
void expect_moments(const std::vector<double>& values, double sum, double squares, const std::string& what,
                    double tolerance = kRounding) {
  const Moments m = moments(values);
  EXPECT_NEAR(m.sum, sum, tolerance * m.absolute) << what;
  EXPECT_NEAR(m.squares, squares, tolerance * squares) << what;
}
void expect_sum(const std::vector<double>& values, double sum, const std::string& what) {
  const Moments m = moments(values);
  EXPECT_NEAR(m.sum, sum, kRounding * m.absolute) << what;
}

TEST(MaceVectors, FillerGivesThePublishedNumbers) {
  EXPECT_EQ(filler("node_embedding.linear.weight", 4),
            (std::vector<double>{-1.2620395398847404, -1.041064887591405, -1.4417793732129918, -1.672116146788505}));
  EXPECT_EQ(filler("interactions.0.linear_up.weight", 3),
            (std::vector<double>{0.04808709836149496, 1.1557495149580057, 0.055153553915159075}));
}

TEST(MaceVectors, M1OnAMolecule) {
  const EvaluationResult result = run(*m1(), system_a());
  EXPECT_EQ(result.n_edges, 6);
  expect_energy(result.energy, -7.715529283689896);
  expect_close(reals(result.node_energies), {-4.3747143620614075, -1.6622458814585903, -1.6785690401698978});
  expect_close(reals(result.forces), {-0.00807229645438737, -0.0111948797153856, 0,   //
                                      0.013941460790861516, 0.010275428572300568, 0,  //
                                      -0.005869164336474147, 0.0009194511430850325, 0});
  EXPECT_FALSE(result.stress.has_value());
}

TEST(MaceVectors, M1OnATriclinicCrystal) {
  const EvaluationResult result = run(*m1(), system_b());
  EXPECT_EQ(result.n_edges, 28);
  expect_energy(result.energy, -5.975902585369342);
  expect_close(force(result, 0), {-0.00613380397902585, -0.006508486881949864, -0.012961137744263777});
  expect_close(force(result, 1), {0.00613380397902585, 0.006508486881949864, 0.012961137744263777});
  ASSERT_TRUE(result.stress.has_value());
  const double xx = -0.0004380738439736931, yy = -0.0012491315534073038, zz = -0.0012063858384567141,
               xy = 7.174418142203774e-06, xz = -0.00019357606074309777, yz = -0.00014190489779295504;
  expect_close(reals(*result.stress), {xx, xy, xz, xy, yy, yz, xz, yz, zz});
}

TEST(MaceVectors, M1OnShortBonds) {
  const EvaluationResult result = run(*m1(), system_c());
  expect_energy(result.energy, -7.654673506987404);
  expect_close(force(result, 0), {-0.6199728115298314, -0.7749660144122903, -1.0849524201772063});
}

TEST(MaceVectors, IsolatedAtomsHaveTheirOwnEnergyAndNoForce) {
  Structure far = system_a();
  far.atomic_numbers.push_back(8);
  far.positions.push_back({50, 0, 0});
  const EvaluationResult result = run(*m1(), far);
  expect_energy(result.energy, -12.090529283689897);
  EXPECT_EQ(reals(result.node_energies)[3], -4.375);
  EXPECT_EQ(force(result, 3), (std::vector<double>{0, 0, 0}));
  for (const auto& [z, energy] : {std::pair{1, -1.625}, std::pair{8, -4.375}}) {
    Structure one;
    one.atomic_numbers = {z};
    one.positions = {{0.3, 0.2, 0.1}};
    const EvaluationResult alone = run(*m1(), one);
    EXPECT_EQ(alone.n_edges, 0);
    EXPECT_EQ(alone.energy, energy);
    EXPECT_EQ(reals(alone.forces), (std::vector<double>{0, 0, 0}));
  }
}

TEST(MaceVectors, EdgesOfTheCutoffLengthChangeNothing) {
  Json config = m1_config();
  config["r_max"] = 3.0;
  const auto model = filled_model(config);
  const Structure a = system_a();
  const EvaluationResult without = run(*model, a);
  EXPECT_EQ(without.n_edges, 4);  // the two edges of length 3 are left out
  expect_energy(without.energy, -7.763165131095765);
  HostEdges all;
  all.atomic_numbers = a.atomic_numbers;
  all.positions = {&a.positions[0][0], 9};
  all.sender = Tensor::from<std::int32_t>({6}, {0, 0, 1, 1, 2, 2});
  all.receiver = Tensor::from<std::int32_t>({6}, {1, 2, 0, 2, 0, 1});
  const EvaluationResult with = model->evaluate(Graph::from_edges(all), reference());
  EXPECT_EQ(with.n_edges, 6);
  EXPECT_EQ(with.energy, without.energy);
  EXPECT_EQ(reals(with.forces), reals(without.forces));
}

TEST(MaceVectors, M1EdgeGradients) {
  const Structure a = system_a();
  HostEdges host;
  host.atomic_numbers = a.atomic_numbers;
  host.positions = {&a.positions[0][0], 9};
  host.sender = Tensor::from<std::int32_t>({6}, {0, 0, 1, 1, 2, 2});
  host.receiver = Tensor::from<std::int32_t>({6}, {1, 2, 0, 2, 0, 1});
  const Graph graph = Graph::from_edges(host);
  const std::vector<double> found = reals(m1()->evaluate(graph, reference()).edge_forces);
  std::vector<double> in_order(18);
  for (std::size_t e = 0; e < 6; ++e) {
    const auto from = static_cast<std::size_t>(graph.input_position().data<std::int64_t>()[e]);
    for (std::size_t k = 0; k < 3; ++k) in_order[3 * from + k] = found[3 * e + k];
  }
  expect_close(in_order,
               {-0.0040662929003390585, 0.0005394569421304613, 0, 0.0005572771731519414, -0.00459770200836628, 0,
                0.004507472858603301, 0.009307969508467098, 0, -0.0006648430048765395, -0.0010992228407490738, 0,
                5.58078685969522e-05, -0.0021713348593173174, 0, -0.006032538036795697, -0.002606138846713005, 0});
}

TEST(MaceVectors, M1StageByStage) {
  Model& model = *m1();
  run(model, system_a());
  // The first edge of the published order is 0 -> 1: the first with receiver 1.
  const std::vector<double> basis = slot(model, "radial_basis"), w1 = slot(model, "0.weights"),
                            w2 = slot(model, "1.weights");
  const std::size_t edge = 2;
  const auto row = [&](const std::vector<double>& values, std::size_t width, std::size_t n) {
    return std::vector<double>(values.begin() + static_cast<std::ptrdiff_t>(edge * width),
                               values.begin() + static_cast<std::ptrdiff_t>(edge * width + n));
  };
  expect_close(row(basis, 4, 4), {0.20693472956701964, -0.07629556139789755, -0.17880502557194855, 0.1422198740317467});
  expect_close(row(w1, w1.size() / 6, 4),
               {0.06877291534039867, -0.12974790464137537, 0.17286784755404896, 0.06192079525356904});
  expect_close(row(w2, w2.size() / 6, 4),
               {0.0738878661109782, -0.1859646418871051, -0.17382556095722082, 0.09396212507100664});
  const auto check = [&](const char* name, double sum, double squares) {
    expect_moments(slot(model, name), sum, squares, name);
  };
  check("sh", 11.234980100662504, 96);
  check("radial_basis", 0.742832440568294, 1.280113450031354);
  check("0.weights", 2.709157601338022, 2.6084057805739778);
  check("1.weights", -7.501171729958721, 9.1139895917086);
  check("0.X", 0.6531601986727413, 0.2651237696150967);
  check("1.X", -0.007619880763428618, 0.001983494940022377);
  const std::vector<double> sc = slot(model, "0.contraction"), h = slot(model, "0.h");
  expect_moments(columns(sc, 16, 0, 4), 0.06477234399178702, 0.010673152358653844, "contraction of layer 1, L 0");
  expect_moments(columns(sc, 16, 4, 16), 0.045170909627209634, 0.009024961814459243, "contraction of layer 1, L 1");
  expect_moments(columns(h, 16, 0, 4), 0.03906455107129014, 0.010516467450052436, "features of layer 1, L 0");
  expect_moments(columns(h, 16, 4, 16), -0.0033773893837581465, 0.009299186668493767, "features of layer 1, L 1");
  check("1.contraction", 0.017564976646429354, 0.00020548174345618437);
  check("1.h", 0.09187846737931728, 0.009054457899286408);
  // A node's readout is the small rest of contributions of order 0.1.
  expect_close(slot(model, "interaction_energy"), {0.00038085058478967183, -0.0496611752781203, -0.07142538689319697});
  const std::vector<double> x = slot(model, "0.X");
  expect_close({x.begin(), x.begin() + 16},
               {0.008465865260579224, -0.012250697422952933, -0.0200209470935648, 0, 0, 0.04143621032915568,
                0.03646739811063635, 0, -0.010359052582288922, -0.0010147601394245925, 0, 0.011790447361159688,
                0.011111359195799033, 0, -0.004971289105811535, 0});
}

TEST(MaceVectors, M1StagesOnACrystal) {
  Model& model = *m1();
  run(model, system_b());
  expect_moments(slot(model, "sh"), 33.140470543764096, 448, "sh");
  expect_sum(slot(model, "radial_basis"), 1.016781408850799, "basis");
  expect_sum(slot(model, "0.weights"), -1.5558173763933896, "weights of layer 1");
  expect_sum(slot(model, "1.weights"), 1.928982476133354, "weights of layer 2");
  expect_sum(slot(model, "0.X"), 0.3917124900996159, "X of layer 1");
  expect_sum(slot(model, "1.X"), 0.003027658766827191, "X of layer 2");
}

TEST(MaceVectors, M2EnergyForcesAndStress) {
  const EvaluationResult a = run(*m2(), system_a());
  expect_energy(a.energy, -0.3302409356877769);
  expect_close(force(a, 0), {-51.97411218319446, -85.23133902130591, 0});
  const EvaluationResult b = run(*m2(), system_b());
  expect_energy(b.energy, -5.9833692542604195);
  expect_close(force(b, 0), {-0.3203901416816712, -0.29558336344674446, -0.7102632602089896});
  const double xx = 0.03403269130702713, yy = 0.0021519620541681954, zz = 0.0006588764933211249,
               xy = 0.003615654112867894, xz = -0.004023309174339264, yz = 0.0009110913169545925;
  expect_close(reals(b.stress.value()), {xx, xy, xz, xy, yy, yz, xz, yz, zz});
  const EvaluationResult c = run(*m2(), system_c());
  expect_energy(c.energy, -5.532858851045786);
  expect_close(force(c, 0), {-8.468155674899732, -10.585194593624664, -14.819272431074525});
  expect_close(slot(*m2(), "pair_repulsion"), {1.3753333646058907, 0.6876666823029454, 0.6876666823029454});
}

TEST(MaceVectors, M2StageByStage) {
  Model& model = *m2();
  run(model, system_a());
  expect_moments(slot(model, "radial_basis"), 22.106852938922255, 27.843668674354372, "basis");
  expect_moments(slot(model, "0.weights"), -49.88644109016784, 326.7646137013064, "weights");
  expect_moments(slot(model, "0.X"), -5.759467497116835, 88.36090930788887, "X");
  const std::vector<double> sc = slot(model, "0.contraction");
  expect_moments(columns(sc, 16, 0, 4), 29.687221727765845, 281.82244778740096, "contraction of layer 1, L 0");
  expect_moments(columns(sc, 16, 4, 16), 4.1293138474449185, 347.3435140500131, "contraction of layer 1, L 1");
  expect_moments(slot(model, "1.contraction"), -12.121300158444111, 695.9887256644496, "contraction of layer 2");
}

/// Gradient of sum F^2 with respect to all parameters: -2 times the tangent of dE/dp along F.
StateDict loss_gradient(Model& model, const Structure& structure, double* loss) {
  EvaluateOptions options = reference();
  options.direction = run(model, structure).forces.clone();
  *loss = 0;
  for (const double f : options.direction.span<double>()) *loss += f * f;
  options.parameter_gradients = true;
  const EvaluationResult result = model.evaluate(structure, options);
  StateDict gradients;
  for (const auto& [name, tensor] : result.parameter_gradients_tangent) {
    Tensor scaled = tensor.clone();
    for (double& value : scaled.span<double>()) value *= -2;
    gradients.add(name, scaled);
  }
  return gradients;
}
void expect_gradient(const StateDict& gradients, const std::string& name, double sum, double squares) {
  ASSERT_TRUE(gradients.contains(name)) << name;
  // Second derivatives: cancellation costs about two digits more than in forces.
  expect_moments(reals(gradients.at(name)), sum, squares, name, 1e-10);
}

TEST(MaceVectors, ParameterGradientOfSquaredForcesOnAMolecule) {
  double loss = 0;
  const StateDict g = loss_gradient(*m1(), system_a(), &loss);
  EXPECT_NEAR(loss, 0.0005257285436301071, 1e-12 * loss);
  expect_gradient(g, "node_embedding.linear.weight", -0.0008561098908506848, 4.102211545357064e-07);
  expect_gradient(g, "interactions.0.conv_tp_weights.layer0.weight", 0.006083436903778283, 1.0463870447298131e-05);
  expect_gradient(g, "interactions.1.conv_tp_weights.layer0.weight", 0.00012775796157036922, 2.2047063373155523e-08);
  expect_gradient(g, "interactions.0.skip_tp.weight", 0.005469544302415461, 7.32149155636622e-06);
  expect_gradient(g, "interactions.1.linear.weight", -0.0002182075993115254, 3.682842881783095e-08);
  const std::string contractions = ".symmetric_contractions.contractions.";
  expect_gradient(g, "products.0" + contractions + "0.weights_max", 6.140476182533652e-05, 1.976002462981055e-09);
  expect_gradient(g, "products.0" + contractions + "1.weights_max", -7.916441675148666e-07, 2.653509048597148e-12);
  expect_gradient(g, "products.1" + contractions + "0.weights_max", -1.0847447226842761e-07, 1.4882472017858923e-15);
  expect_gradient(g, "readouts.0.linear.weight", 0.002714690082117653, 5.079880597722202e-06);
  expect_gradient(g, "readouts.1.linear_2.weight", -0.0001454888533478886, 4.564505600074078e-08);
  EXPECT_EQ(g.size(), m1()->named_parameters().size());
}

TEST(MaceVectors, ParameterGradientOfSquaredForcesOnACrystalAndOnShortBonds) {
  double loss = 0;
  const StateDict b = loss_gradient(*m1(), system_b(), &loss);
  EXPECT_NEAR(loss, 0.000495950088742812, 1e-12 * loss);
  expect_gradient(b, "node_embedding.linear.weight", -0.0008976802826222512, 1.6277841512906116e-06);
  expect_gradient(b, "interactions.0.conv_tp_weights.layer0.weight", 0.001838894062519751, 2.7050081491481572e-06);
  expect_gradient(b, "products.0.symmetric_contractions.contractions.0.weights_max", -0.00011738709566653876,
                  4.33890219956356e-08);
  const StateDict c = loss_gradient(*m2(), system_c(), &loss);
  EXPECT_NEAR(loss, 605.3735179877165, 1e-12 * loss);
  expect_gradient(c, "node_embedding.linear.weight", -623.7173786860037, 1022406.5504938036);
  expect_gradient(c, "interactions.0.density_fn.layer0.weight", -126.20636007930328, 4355.862143319224);
  expect_gradient(c, "interactions.1.density_fn.layer0.weight", 74.46826012844433, 1554.2327414883862);
}

TEST(MaceVectors, PairRepulsionIsInFloat64WhateverTheDtype) {
  // A length rounded to float32 that is 1 % below the sum of the radii gives a force that is wrong by 1e-5.
  run(*m2(), system_c());
  const std::vector<double> want = slot(*m2(), "pair_repulsion"), lengths = slot(*m2(), "exact lengths");
  EvaluateOptions options = reference();
  options.dtype = DType::float32;
  m2()->evaluate(system_c(), options);
  EXPECT_EQ(slot(*m2(), "pair_repulsion"), want);
  EXPECT_EQ(slot(*m2(), "exact lengths"), lengths);
  EXPECT_NE(slot(*m2(), "lengths"), lengths);
}

TEST(MaceVectors, Float32IsAsCloseAsThePackages) {
  EvaluateOptions options = reference();
  options.dtype = DType::float32;
  const EvaluationResult a = m1()->evaluate(system_a(), options);
  EXPECT_NEAR(a.energy, -7.715529283689896, 1e-7 * 7.7);  // the total is summed in float64
  expect_close(force(a, 0), {-0.00807229645438737, -0.0111948797153856, 0}, 1e-5);
  const EvaluationResult hard = m2()->evaluate(system_a(), options);
  expect_close(force(hard, 0), {-51.97411218319446, -85.23133902130591, 0}, 1e-5);
  const EvaluationResult c = m2()->evaluate(system_c(), options);
  expect_close(force(c, 0), {-8.468155674899732, -10.585194593624664, -14.819272431074525}, 1e-5);
}

}  // namespace
}  // namespace fastpath::test
